"""The metrics of generated texts by name, and what is told of a name that is not among them."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from typing import Any

from kunren.base.names import did_you_mean
from kunren.metrics.declaration import PERPLEXITY
from kunren.metrics.text.declaration import TextMetric
from kunren.metrics.text.summarization import SUMMARIZATION
from kunren.metrics.text.transcription import TRANSCRIPTION
from kunren.metrics.text.translation import TRANSLATION

TEXT_METRICS: dict[str, TextMetric] = {**TRANSLATION, **SUMMARIZATION, **TRANSCRIPTION}
ALIASES = {
    "chrfpp": "chrf++",
    "chrf_plus_plus": "chrf++",
    "em": "exact_match",
    "word_error_rate": "wer",
    "character_error_rate": "cer",
    "char_error_rate": "cer",
    "sacrebleu_13a": "sacrebleu",
}
# Known to many, and not computed here.
_ELSEWHERE = {
    "meteor": "it needs a thesaurus of each language: take chrf, or compute_metrics",
    "bertscore": "it needs a second model: take chrf, or compute_metrics",
    "comet": "it needs a second model: take chrf, or compute_metrics",
    "bleurt": "it needs a second model: take chrf, or compute_metrics",
}
_BY_KEY = {name.lower(): name for name in TEXT_METRICS}


def key_of(given: str) -> str:
    """Blanks, hyphens and capitals do not matter."""
    return re.sub(r"[\s_-]+", "_", given.strip().lower())


def text_metric_called(given: Any) -> str | None:
    """The metric of texts that a name asks for; None for another name."""
    key = key_of(given) if isinstance(given, str) else ""
    key = ALIASES.get(key, key)
    return _BY_KEY.get(key) or _BY_KEY.get(re.sub(r"(?<=^rouge)_", "", key))


def requests_for_texts(names: Sequence[Any]) -> list[str]:
    """The metrics that names ask for. ValueError for one that generated texts do not have, with those that they do."""
    return [PERPLEXITY if _is_perplexity(name) else text_metric_called(name) or _refuse(name) for name in names]


def _is_perplexity(given: Any) -> bool:
    return isinstance(given, str) and key_of(given) == PERPLEXITY


def _refuse(given: Any) -> str:
    known = [*TEXT_METRICS, PERPLEXITY]
    key = key_of(given) if isinstance(given, str) else ""
    if key in _ELSEWHERE:
        raise ValueError(f"metrics: {given!r} is not computed, for {_ELSEWHERE[key]}.")
    raise ValueError(
        f"metrics: {given!r} is not a metric of generated texts, which predict_with_generate=True makes. There are: "
        f"{', '.join(known)}.{did_you_mean(key, known)}"
    )


def check_text_names(names: Sequence[Any]) -> None:
    """ValueError for a metric that texts do not have, ImportError for one whose package is not there."""
    for name in requests_for_texts(names):
        missing = [
            install
            for module, install in (TEXT_METRICS[name].packages if name != PERPLEXITY else ())
            if importlib.util.find_spec(module) is None
        ]
        if missing:
            raise ImportError(f"metrics: {name!r} needs {', '.join(missing)}: pip install {' '.join(missing)}.")
