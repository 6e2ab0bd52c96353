"""What `kunren plan` says, in the language of a check that repeats it."""

from __future__ import annotations

import re

_JAPANESE = {
    r"(\S+) rows, (\S+) tokens": "{0} 行、{1} トークン",
    r"(\S+) rows": "{0} 行",
    r"(\S+) of the tokens are padding: batching='grouped' has less, 'packed' none\.": "トークンの {0} がパディング。"
    "batching='grouped' で減り、'packed' でなくなる",
    r"The whole run is warm-up: (\S+) of (\S+) steps\. .*": "全体がウォームアップ（{1} ステップ中 {0}）。"
    "1 未満の warmup_steps は全体に対する割合",
    r"Nothing is saved in about (.+): save_strategy='no'\.": "約 {0} の間、何も保存されない（save_strategy='no'）",
}


def in_language(text: str, language: str) -> str:
    """The same in Japanese where that is wanted and known; else as it is."""
    if language != "ja":
        return text
    for pattern, japanese in _JAPANESE.items():
        if found := re.fullmatch(pattern, text):
            return japanese.format(*found.groups())
    return text
