"""`kunren train --help`: every argument, by group, in English or Japanese, as wide as the terminal. Loads no torch."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from contextlib import suppress

from kunren.arguments.construction import USUAL_ELSEWHERE
from kunren.arguments.help_texts import ArgumentHelp, help_sections
from kunren.arguments.legacy import LEGACY_NAMES
from kunren.base.names import closest_name
from kunren.cli.language import LANGUAGES
from kunren.cli.language import language_of as language_of  # where it was at first
from kunren.cli.line_breaks import wrapped
from kunren.cli.run_keys import GENERATION_KEYS, GENERATION_TITLE, REQUIRED, RUN_KEYS, TITLE

_WIDEST, _NARROWEST = 110, 40
_MANY_CHOICES = 15
_WORDS = {
    "en": {
        "about": "Train what CONFIG describes, a YAML or JSON file with `name: value` lines. What stands after it on "
        "the command line goes before what it says.",
        "usage": "usage: kunren train CONFIG [--name value ...]",
        "names": "`--per-device-train-batch-size 8` may be written with dashes or underscores. A switch is given as "
        "--bf16 or --no-bf16, a list as --report_to tensorboard wandb, and a dict as JSON in quotes.",
        "resume": "go on from the newest checkpoint in output_dir, or from the one named",
        "print_config": "print all arguments with their values, or those that differ from the defaults, as YAML; train "
        "nothing",
        "help": "this text; with a name or a part of one, only what it says of that",
        "lang": "en or ja; otherwise what LC_ALL, LC_MESSAGES or LANG says",
        "default": "default: {}",
        "required": "required",
        "choices": "choices: ",
        "many": "{} names: `kunren train --help {}` lists them",
        "group": "group: ",
        "old": "old names: ",
        "elsewhere": "{} is called {} here.",
        "formerly": "{} is an old name: {}.",
        "written": "written: ",
        "nearest": " Did you mean '{}'?",
        "unknown": "There is no argument '{}'.{} `kunren train --help` shows all.",
    },
    "ja": {
        "about": "CONFIG（`名前: 値` の行を並べた YAML または JSON ファイル）のとおりに学習する。"
        "その後に続けたコマンドラインの指定は、ファイルより優先する。",
        "usage": "使い方: kunren train CONFIG [--名前 値 ...]",
        "names": "`--per-device-train-batch-size 8` のように、名前の区切りはハイフンでもアンダースコアでもよい。"
        "スイッチは --bf16 または --no-bf16、リストは --report_to tensorboard wandb、辞書は JSON を引用符で囲んで"
        "指定する。",
        "resume": "output_dir の最新のチェックポイント、または指定したチェックポイントから再開する",
        "print_config": "全引数の値（changed なら既定値と異なるもの）を YAML で表示する。学習はしない",
        "help": "このヘルプ。名前（またはその一部）を続けると、その引数だけを表示する",
        "lang": "en または ja。省略すると LC_ALL、LC_MESSAGES、LANG に従う",
        "default": "既定値: {}",
        "required": "必須",
        "choices": "選択肢: ",
        "many": "{} 種類。`kunren train --help {}` で一覧を表示",
        "group": "分類: ",
        "old": "以前の名前: ",
        "elsewhere": "{} は、ここでは {} という名前。",
        "formerly": "{} は以前の名前: {}",
        "written": "書き方: ",
        "nearest": "'{}' のことか。",
        "unknown": "引数 '{}' はない。{}一覧は `kunren train --help` で見られる。",
    },
}


class UnknownName(Exception):
    """There is no argument of that name; the message tells the nearest one."""


def overview(language: str, width: int | None = None) -> str:
    """All arguments."""
    words, columns = _WORDS[language], _columns(width)
    lines = [words["usage"], "", *wrapped(words["about"], columns), "", *wrapped(words["names"], columns), ""]
    options = {"resume": "--resume [PATH]", "print_config": "--print_config[=changed]"}
    options |= {"help": "--help [NAME ...]", "lang": "--lang LANGUAGE"}
    for key, option in options.items():
        lines += [f"  {option}", *wrapped(words[key], columns, 6)]
    for title, entries in sections(language):
        lines += ["", f"{title}:"]
        for entry in entries:
            lines += _short(entry, language, columns)
    return "\n".join(lines)


def details(names: Sequence[str], language: str, width: int | None = None) -> str:
    """What there is to say of each name, or of all that it is a part of; UnknownName where there is nothing."""
    columns, blocks = _columns(width), []
    found = sections(language)
    groups = {entry.name: (title, entry) for title, entries in found for entry in entries}
    for asked in names:
        name = asked.lstrip("-").replace("-", "_")
        near = [entry for other, (_, entry) in groups.items() if name and name in other]
        if name in groups:
            blocks.append(_long(*groups[name], language, columns))
        elif name in USUAL_ELSEWHERE or name in LEGACY_NAMES:
            said = "elsewhere" if name in USUAL_ELSEWHERE else "formerly"
            now = USUAL_ELSEWHERE.get(name) or LEGACY_NAMES[name].now
            blocks.append(wrapped(_WORDS[language][said].format(name, now), columns))
            if (new := re.split(r"\W", now)[0]) in groups:
                blocks.append(_long(*groups[new], language, columns))
        elif near:
            blocks.append([line for entry in near for line in _short(entry, language, columns)])
        else:
            nearest = closest_name(name, groups)
            hint = _WORDS[language]["nearest"].format(nearest) if nearest else ""
            raise UnknownName(_WORDS[language]["unknown"].format(name, hint))
    return "\n\n".join("\n".join(block) for block in blocks)


def show(text: str) -> None:
    """Print it; characters that the terminal's encoding lacks become question marks, and `| head` may stop reading."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    with suppress(BrokenPipeError):
        print(text.encode(encoding, "replace").decode(encoding))
    drain()


def drain() -> None:
    """Have what was printed written, unless nobody reads it any more."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it ends


def _columns(width: int | None) -> int:
    found = shutil.get_terminal_size((100, 24)).columns if width is None else width
    return max(_NARROWEST, min(found, _WIDEST))


def sections(language: str) -> list[tuple[str, list[ArgumentHelp]]]:
    """The groups, each with its title and its arguments; first what is said besides arguments."""
    place = LANGUAGES.index(language)
    own, generation = (
        [ArgumentHelp(name, key.kinds, None, key.choices, key.texts[place]) for name, key in keys.items()]
        for keys in (RUN_KEYS, GENERATION_KEYS)
    )
    return [(TITLE[place], own), (GENERATION_TITLE[place], generation), *help_sections(language)]


def _head(entry: ArgumentHelp, language: str, columns: int) -> list[str]:
    words = _WORDS[language]
    default = words["default"].format(entry.default if entry.default != "" else "''")
    brackets = "（{}）" if language == "ja" else " ({})"
    said = brackets.format(words["required"] if entry.name in REQUIRED else default)
    return wrapped(f"--{entry.name} {' | '.join(entry.kinds)}{said}", columns, 6, first=2)


def _short(entry: ArgumentHelp, language: str, columns: int) -> list[str]:
    words = _WORDS[language]
    lines = [*_head(entry, language, columns), *wrapped(entry.text, columns, 6)]
    if len(entry.choices) > _MANY_CHOICES:
        lines += wrapped(words["choices"] + words["many"].format(len(entry.choices), entry.name), columns, 6)
    elif not all(f"'{choice}'" in entry.text for choice in entry.choices):
        lines += wrapped(words["choices"] + ", ".join(entry.choices), columns, 6)
    return lines


def _long(title: str, entry: ArgumentHelp, language: str, columns: int) -> list[str]:
    words = _WORDS[language]
    lines = [*_head(entry, language, columns), "", *wrapped(entry.text, columns, 6), ""]
    if entry.choices:
        lines += wrapped(words["choices"] + ", ".join(entry.choices), columns, 6)
    lines += wrapped(words["written"] + _examples(entry), columns, 6)
    old = [name for name, legacy in LEGACY_NAMES.items() if re.split(r"\W", legacy.now)[0] == entry.name]
    if old:
        lines += wrapped(words["old"] + ", ".join(old), columns, 6)
    return [*lines, *wrapped(words["group"] + title, columns, 6)]


def _examples(entry: ArgumentHelp) -> str:
    option = f"--{entry.name}"
    if "bool" in entry.kinds and "str" not in entry.kinds:
        return f"{option}, --no-{entry.name.replace('_', '-')}"
    if "list" in entry.kinds:
        return f"{option} A, {option} A B"
    if "dict" in entry.kinds:
        return f"{option} '{{\"key\": 1}}'"
    return f"{option} {entry.kinds[0].upper()}"
