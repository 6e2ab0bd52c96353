"""How near texts are to those that were wanted: ROUGE, BLEU and chrF, each from 0 to 100, and SQuAD's two scores."""

from __future__ import annotations

import math
import re
import string
from collections import Counter
from collections.abc import Sequence


def rouge(answers: Sequence[str], truths: Sequence[str]) -> dict[str, float]:
    """Mean F-scores of common words, common pairs, and the longest common subsequence (Lin, 2004); no stemming."""
    totals = Counter(rouge1=0.0, rouge2=0.0, rougeL=0.0)
    for pair in zip(answers, truths, strict=True):
        said, wanted = (re.findall(r"\w+", text.lower()) for text in pair)
        for length in (1, 2):
            ours, theirs = _ngrams(said, length), _ngrams(wanted, length)
            totals[f"rouge{length}"] += _f_score((ours & theirs).total(), ours.total(), theirs.total())
        totals["rougeL"] += _f_score(_longest_common(said, wanted), len(said), len(wanted))
    return {name: 100 * total / max(1, len(answers)) for name, total in totals.items()}


def bleu(answers: Sequence[str], truths: Sequence[str], longest: int = 4) -> float:
    """BLEU of all texts together (Papineni et al., 2002); words and punctuation marks are the units."""
    right, said, ours, theirs = [0] * longest, [0] * longest, 0, 0
    for pair in zip(answers, truths, strict=True):
        answer, truth = (re.findall(r"\w+|[^\w\s]", text) for text in pair)
        ours, theirs = ours + len(answer), theirs + len(truth)
        for length in range(1, longest + 1):
            found = _ngrams(answer, length)
            right[length - 1] += (found & _ngrams(truth, length)).total()
            said[length - 1] += found.total()
    if not all(right):
        return 0.0
    precision = math.exp(sum(math.log(one / all_) for one, all_ in zip(right, said, strict=True)) / longest)
    return 100 * precision * min(1.0, math.exp(1 - theirs / ours))


def chrf(answers: Sequence[str], truths: Sequence[str], longest: int = 6, beta: float = 2.0) -> float:
    """F-score of character n-grams over all texts (Popović, 2015): fit for languages without blanks, too."""
    precision = recall = 0.0
    for length in range(1, longest + 1):
        right = said = wanted = 0
        for pair in zip(answers, truths, strict=True):
            ours, theirs = (_ngrams("".join(text.split()), length) for text in pair)
            right, said, wanted = right + (ours & theirs).total(), said + ours.total(), wanted + theirs.total()
        precision += right / max(1, said) / longest
        recall += right / max(1, wanted) / longest
    return 100 * (1 + beta**2) * precision * recall / max(1e-9, beta**2 * precision + recall)


def squad(answer: str, truths: Sequence[str]) -> tuple[float, float]:
    """Exact match and F1 of words with the nearest of several right answers (Rajpurkar et al., 2016), 0 to 1."""
    said = _plain(answer)
    pairs = [(said, _plain(truth)) for truth in truths or [""]]
    return max(float(ours == wanted) for ours, wanted in pairs), max(_word_f1(ours, wanted) for ours, wanted in pairs)


def _plain(answer: str) -> list[str]:
    """Words without case, punctuation and articles."""
    answer = "".join(character for character in answer.lower() if character not in string.punctuation)
    return re.sub(r"\b(a|an|the)\b", " ", answer).split()


def _word_f1(said: list[str], wanted: list[str]) -> float:
    if not said or not wanted:
        return float(said == wanted)
    return _f_score((Counter(said) & Counter(wanted)).total(), len(said), len(wanted))


def _f_score(right: float, said: float, wanted: float) -> float:
    return 2 * right / (said + wanted) if said + wanted else 0.0


def _ngrams(units: Sequence[str], length: int) -> Counter:
    return Counter(tuple(units[start : start + length]) for start in range(len(units) - length + 1))


def _longest_common(left: Sequence[str], right: Sequence[str]) -> int:
    row = [0] * (len(right) + 1)
    for one in left:
        before = row
        row = [0]
        for place, other in enumerate(right):
            row.append(before[place] + 1 if one == other else max(before[place + 1], row[place]))
    return row[-1]
