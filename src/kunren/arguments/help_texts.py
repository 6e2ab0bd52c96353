"""What a command line shows of every argument: group by group, with type, default, choices and text. Loads no torch."""

from __future__ import annotations

import dataclasses
import inspect
import re
from dataclasses import dataclass
from typing import Any

from kunren.arguments import choices
from kunren.arguments.best_model import BestModel
from kunren.arguments.dataloading import Dataloading
from kunren.arguments.distributed import Distributed
from kunren.arguments.duration import Duration
from kunren.arguments.evaluation import Evaluation
from kunren.arguments.group import ArgumentGroup
from kunren.arguments.hub import Hub
from kunren.arguments.logging_and_tracking import LoggingAndTracking
from kunren.arguments.model_execution import ModelExecution
from kunren.arguments.optimization import Optimization
from kunren.arguments.output import Output, ScriptFlags
from kunren.arguments.precision import Precision
from kunren.arguments.reproducibility import Reproducibility
from kunren.arguments.saving import Saving

LANGUAGES = ("en", "ja")

# In the order in which people look for them.
_TITLES: dict[type[ArgumentGroup], tuple[str, str]] = {
    Output: ("Output", "出力先"),
    Duration: ("Length of the training and size of a step", "学習の長さとバッチサイズ"),
    Optimization: ("Optimizer, learning rate and gradients", "オプティマイザー・学習率・勾配"),
    Precision: ("Number formats", "数値精度"),
    ModelExecution: ("How the model is computed", "モデルの実行"),
    Dataloading: ("Data and batches", "データとバッチ"),
    Evaluation: ("Evaluation", "評価"),
    Saving: ("Checkpoints and resuming", "チェックポイントと再開"),
    BestModel: ("The best model", "ベストモデル"),
    LoggingAndTracking: ("Logs, trackers and reports", "ログ・トラッカー・レポート"),
    Reproducibility: ("Random numbers and debugging", "乱数とデバッグ"),
    Distributed: ("Devices and processes", "デバイスと分散学習"),
    Hub: ("Hugging Face Hub", "Hugging Face Hub"),
    ScriptFlags: ("For scripts of your own", "自作スクリプト用"),
}

_PLAIN = {"Literal": "bool", "Any": "object"}  # the one Literal is False


@dataclass(frozen=True)
class ArgumentHelp:
    """One argument. `kinds` are the types that it takes, by name and without None; `choices` is empty if it is open."""

    name: str
    kinds: tuple[str, ...]
    default: Any
    choices: tuple[str, ...]
    text: str


def help_texts(language: str) -> dict[str, str]:
    """The text of each argument, by its name; ValueError for a language that there is none in."""
    if language not in LANGUAGES:
        raise ValueError(f"There is no help in {language!r}: choose {' or '.join(LANGUAGES)}.")
    if language == "ja":
        from kunren.arguments.help_ja import TEXTS  # not loaded with everything else: few ask for it

        return dict(TEXTS)
    return {item.name: item.metadata["help"] for group in _TITLES for item in _own_fields(group)}


def help_sections(language: str) -> list[tuple[str, list[ArgumentHelp]]]:
    """The groups, each with its title and its arguments."""
    texts = help_texts(language)
    return [
        (titles[LANGUAGES.index(language)], [_help_of(group, item, texts[item.name]) for item in _own_fields(group)])
        for group, titles in _TITLES.items()
    ]


def declared_types() -> dict[str, str]:
    """The annotation of each argument, by its name."""
    return {
        item.name: str(inspect.get_annotations(group)[item.name]) for group in _TITLES for item in _own_fields(group)
    }


def kinds_in(annotation: str) -> tuple[str, ...]:
    """The types that an annotation names, without None and without what is in brackets; an enum is a str."""
    inner, left = 1, annotation
    while inner:
        left, inner = re.subn(r"\[[^\[\]]*\]", "", left)
    names = [name.strip() for name in left.split("|")]
    plain = [_PLAIN.get(name, "str" if enum_named(name) else name) for name in names if name != "None"]
    return tuple(dict.fromkeys(plain))


def enum_named(name: str) -> type[choices.NameEnum] | None:
    """The enum of an argument's names, if that is what `name` is."""
    found = getattr(choices, name, None)
    return found if isinstance(found, type) and issubclass(found, choices.NameEnum) else None


def _own_fields(group: type[ArgumentGroup]) -> list[dataclasses.Field[Any]]:
    """The fields that a group declares itself, not those of the groups it rests on."""
    own = inspect.get_annotations(group)
    fields = dataclasses.fields(group)  # type: ignore[arg-type]  # each of them is a dataclass
    return [item for item in fields if item.name in own]


def _help_of(group: type[ArgumentGroup], item: dataclasses.Field[Any], text: str) -> ArgumentHelp:
    annotation = str(inspect.get_annotations(group)[item.name])  # transformers' parser writes over `item.type`
    enums = [enum for name in annotation.split(" | ") if (enum := enum_named(name))]
    named = [str(member) for enum in enums for member in enum]
    if choices.OptimizerNames in enums:
        named += [name for name in choices.FURTHER_OPTIMIZERS if name not in named]
    default = item.default if item.default is not dataclasses.MISSING else []
    return ArgumentHelp(
        item.name, kinds_in(annotation), default, tuple(item.metadata.get("choices", ())) or tuple(named), text
    )
