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
from kunren.arguments.later import LATER
from kunren.arguments.legacy import LEGACY_NAMES
from kunren.base.names import closest_name
from kunren.cli.language import LANGUAGES
from kunren.cli.language import language_of as language_of  # where it was at first
from kunren.cli.line_breaks import wrapped

_WIDEST, _NARROWEST = 110, 40
_MANY_CHOICES = 15
_TITLE = ("The data and the model", "モデルとデータ")
_OWN = {
    "model": ("A folder or a name for transformers.", "transformers のモデルのフォルダーまたは名前。"),
    "task": (
        "What the model is for: text-classification, text-generation, fill-mask, token-classification, "
        "question-answering, summarization, translation or text2text-generation.",
        "モデルの用途。text-classification、text-generation、fill-mask、token-classification、question-answering、"
        "summarization、translation、text2text-generation のいずれか。",
    ),
    "train_dataset": (
        "A csv, json, jsonl, parquet or text file, a folder of such, or what the package datasets has saved.",
        "学習データ。csv、json、jsonl、parquet、テキストのファイル、それらのフォルダー、datasets で保存したもの。",
    ),
    "eval_dataset": (
        "The same, to evaluate on; None: nothing is evaluated.",
        "評価データ。形式は学習データと同じ。None なら評価しない。",
    ),
    "text_column": (
        "The column to tokenize, or two for pairs; None: text, sentence, content or review.",
        "トークン化する列。文のペアなら 2 つ指定する。None なら text、sentence、content、review のうちあるもの。",
    ),
    "label_column": (
        "The column of the classes, for text-classification; None: label or labels.",
        "クラスの列（text-classification 用）。None なら label または labels。",
    ),
    "max_length": ("Tokens that a text is cut to; None: 512.", "テキストを切り詰めるトークン数。None なら 512。"),
}
_REQUIRED = ("model", "task", "train_dataset")
_OWN_KINDS = {"text_column": ("str", "list"), "max_length": ("int",)}
_WORDS = {
    "en": {
        "about": "Train what CONFIG describes, a YAML or JSON file with `name: value` lines. What stands after it on "
        "the command line goes before what it says.",
        "usage": "usage: kunren train CONFIG [--name value ...]",
        "names": "`--per-device-train-batch-size 8` may be written with dashes or underscores. A switch is given as "
        "--bf16 or --no-bf16, a list as --report_to tensorboard wandb, and a dict as JSON in quotes.",
        "resume": "go on from the newest checkpoint in output_dir, or from the one named",
        "help": "this text; with a name or a part of one, only what it says of that",
        "lang": "en or ja; otherwise what LC_ALL, LC_MESSAGES or LANG says",
        "default": "default: {}",
        "required": "required",
        "choices": "choices: ",
        "many": "{} names: `kunren train --help {}` lists them",
        "group": "group: ",
        "old": "old names: ",
        "later": "Not yet in this version of kunren, which refuses it.",
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
        "help": "このヘルプ。名前（またはその一部）を続けると、その引数だけを表示する",
        "lang": "en または ja。省略すると LC_ALL、LC_MESSAGES、LANG に従う",
        "default": "既定値: {}",
        "required": "必須",
        "choices": "選択肢: ",
        "many": "{} 種類。`kunren train --help {}` で一覧を表示",
        "group": "分類: ",
        "old": "以前の名前: ",
        "later": "このバージョンの kunren ではまだ使えず、エラーになる。",
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
    for option, key in (("--resume [PATH]", "resume"), ("--help [NAME ...]", "help"), ("--lang LANGUAGE", "lang")):
        lines += [f"  {option}", *wrapped(words[key], columns, 6)]
    for title, entries in _sections(language):
        lines += ["", f"{title}:"]
        for entry in entries:
            lines += _short(entry, language, columns)
    return "\n".join(lines)


def details(names: Sequence[str], language: str, width: int | None = None) -> str:
    """What there is to say of each name, or of all that it is a part of; UnknownName where there is nothing."""
    columns, blocks = _columns(width), []
    sections = _sections(language)
    groups = {entry.name: (title, entry) for title, entries in sections for entry in entries}
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


def _sections(language: str) -> list[tuple[str, list[ArgumentHelp]]]:
    place = LANGUAGES.index(language)
    own = [ArgumentHelp(name, _OWN_KINDS.get(name, ("str",)), None, (), texts[place]) for name, texts in _OWN.items()]
    return [(_TITLE[place], own), *help_sections(language)]


def _head(entry: ArgumentHelp, language: str, columns: int) -> list[str]:
    words = _WORDS[language]
    default = words["default"].format(entry.default if entry.default != "" else "''")
    brackets = "（{}）" if language == "ja" else " ({})"
    said = brackets.format(words["required"] if entry.name in _REQUIRED else default)
    return wrapped(f"--{entry.name} {' | '.join(entry.kinds)}{said}", columns, 6, first=2)


def _short(entry: ArgumentHelp, language: str, columns: int) -> list[str]:
    words = _WORDS[language]
    lines = [*_head(entry, language, columns), *wrapped(entry.text, columns, 6)]
    if len(entry.choices) > _MANY_CHOICES:
        lines += wrapped(words["choices"] + words["many"].format(len(entry.choices), entry.name), columns, 6)
    elif not all(f"'{choice}'" in entry.text for choice in entry.choices):
        lines += wrapped(words["choices"] + ", ".join(entry.choices), columns, 6)
    if entry.name in LATER:
        lines += wrapped(words["later"], columns, 6)
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
    if entry.name in LATER:
        lines += wrapped(words["later"], columns, 6)
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
