"""Each metric of texts has the number that the field's package for it reports."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kunren.metrics.text.names import TEXT_METRICS

pytest.importorskip("torchmetrics")

PAIRS = [
    ("the cat sat on the mat today .", "a cat sat on the mat ."),
    ("Hello (there) world!", "hello there, my world!"),
    ("x", "y"),
    ("one two three four five six", "one two three four five six"),
    ("", "something"),
    ("今日は良い天気です。", "今日は天気が良いです。"),
]
TEXTS, RIGHT = [text for text, _ in PAIRS], [right for _, right in PAIRS]


def computed(name: str, texts: Sequence[str], right: Sequence[str], batch: int = 100) -> float:
    metric = TEXT_METRICS[name]
    state = metric.make()
    for at in range(0, len(texts), batch):
        metric.feed(state, texts[at : at + batch], right[at : at + batch])
    return metric.read(state)


words = st.lists(st.sampled_from(["the", "cat", "sat,", "(on)", "a", "mat.", "猫", "東京"]), max_size=9).map(" ".join)


@settings(max_examples=60, deadline=None)
@given(pairs=st.lists(st.tuples(words, words.filter(bool)), min_size=1, max_size=5))
def test_sacrebleu(pairs: list[tuple[str, str]]) -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    texts, right = [text for text, _ in pairs], [wanted for _, wanted in pairs]
    expected = {
        "sacrebleu": sacrebleu.BLEU(),
        "sacrebleu_char": sacrebleu.BLEU(tokenize="char"),
        "sacrebleu_zh": sacrebleu.BLEU(tokenize="zh"),
        "sacrebleu_intl": sacrebleu.BLEU(tokenize="intl"),
        "chrf": sacrebleu.CHRF(),
        "chrf++": sacrebleu.CHRF(word_order=2),
    }
    for name, theirs in expected.items():
        assert computed(name, texts, right) == pytest.approx(theirs.corpus_score(texts, [right]).score, abs=1e-4), name


def test_bleu_is_that_of_words_between_blanks() -> None:
    sacrebleu = pytest.importorskip("sacrebleu")
    expected = sacrebleu.BLEU(tokenize="none", smooth_method="none").corpus_score(TEXTS, [RIGHT]).score
    assert 100 * computed("bleu", TEXTS, RIGHT) == pytest.approx(expected, abs=1e-4)
    assert computed("bleu", TEXTS[2:3], RIGHT[2:3]) == 0.0


def edits(left: Sequence[str], right: Sequence[str]) -> int:
    row = list(range(len(right) + 1))
    for one in left:
        before, row[0] = row[0], row[0] + 1
        for place, other in enumerate(right, start=1):
            before, row[place] = row[place], min(row[place] + 1, row[place - 1] + 1, before + (one != other))
    return row[-1]


def test_error_rates() -> None:
    by_words = sum(edits(text.split(), right.split()) for text, right in PAIRS)
    by_characters = sum(edits(text, right) for text, right in PAIRS)
    assert computed("wer", TEXTS, RIGHT) == pytest.approx(by_words / sum(len(right.split()) for right in RIGHT))
    assert computed("cer", TEXTS, RIGHT) == pytest.approx(by_characters / sum(map(len, RIGHT)))
    assert computed("exact_match", TEXTS, RIGHT) == pytest.approx(1 / 6)


def shared(left: Sequence[str], right: Sequence[str], order: int) -> tuple[int, int, int]:
    """n-grams of both, of the one and of the other; of order 0 the longest common subsequence."""
    if order == 0:
        kept = (
            size
            for size in range(min(len(left), len(right)), -1, -1)
            for chosen in itertools.combinations(left, size)
            if _is_subsequence(chosen, right)
        )
        return next(kept), len(left), len(right)
    grams = [[tuple(one[at : at + order]) for at in range(len(one) - order + 1)] for one in (left, right)]
    return sum(min(grams[0].count(gram), grams[1].count(gram)) for gram in set(grams[0])), *map(len, grams)


def _is_subsequence(chosen: Sequence[str], whole: Sequence[str]) -> bool:
    rest = iter(whole)
    return all(one in rest for one in chosen)


@pytest.mark.parametrize(("name", "order"), [("rouge1", 1), ("rouge2", 2), ("rougeL", 0)])
def test_rouge(name: str, order: int) -> None:
    pairs = [("the cat sat on the mat", "a cat on the mat sat"), ("one two", "two one"), ("nothing", "at all")]
    for key in (name, f"{name}_char"):
        scores = []
        for text, right in pairs:
            divided = [list("".join(one.split())) if key.endswith("char") else one.split() for one in (text, right)]
            divided = [one[:14] for one in divided]  # subsequences are tried one by one
            text, right = (("" if key.endswith("char") else " ").join(one) for one in divided)
            both, left_count, right_count = shared(*divided, order)
            if both:
                precision, recall = both / left_count, both / right_count
                scores.append(2 * precision * recall / (precision + recall))
            else:
                scores.append(0.0)
            assert computed(key, [text], [right]) == pytest.approx(scores[-1], abs=1e-6), (key, text)
    assert computed(name, *zip(*pairs, strict=True)) < 1


@pytest.mark.parametrize(
    ("text", "right", "expected"),
    [
        ("the cat sat.\na dog ran home", "a cat sat on the mat\nthe dog ran", 0.75),
        ("one two three\ntwo one", "one two one\nthree", 8 / 9),
        ("home\nthe cat", "the cat\nwent home", 6 / 7),
        ("one two", "two one", 0.5),
        ("", "one", 0.0),
    ],
)
def test_summaries_of_several_sentences(text: str, right: str, expected: float) -> None:
    """The numbers of the package rouge_score."""
    assert computed("rougeLsum", [text], [right]) == pytest.approx(expected)


@pytest.mark.parametrize("name", [name for name in TEXT_METRICS if name != "sacrebleu_ja_mecab"])
def test_batches_do_not_matter(name: str) -> None:
    whole = computed(name, TEXTS, RIGHT)
    assert computed(name, TEXTS, RIGHT, batch=1) == pytest.approx(whole, rel=1e-6)
    assert computed(name, TEXTS, RIGHT, batch=4) == pytest.approx(whole, rel=1e-6)
    assert math.isfinite(whole) and whole > 0


def test_characters_count_where_words_do_not() -> None:
    text, right = ["今日は良い天気です"], ["今日は天気が良いです"]
    for name in ("rouge1", "rougeL", "sacrebleu_intl", "bleu"):
        assert computed(name, text, right) < 3
    for name, least in (("rouge1_char", 0.9), ("rougeL_char", 0.7), ("chrf", 20), ("sacrebleu_char", 20)):
        assert computed(name, text, right) > least
