"""What a check has found: one row for each thing looked at, and the table of all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any

from kunren.cli.check_words import NAMES, TEXTS, WORDS
from kunren.cli.line_breaks import wrapped
from kunren.report.text_width import columns_of, printable

OK, WARNING, FAILED, SKIPPED = "ok", "warning", "failed", "skipped"
_WIDEST, _NARROWEST = 120, 60


@dataclass(frozen=True)
class Finding:
    """`check` names what was looked at; `remedy` is empty where there is nothing to mend."""

    check: str
    verdict: str
    detail: str
    remedy: str = ""


@dataclass
class Findings:
    """Those of one run, in the order in which they were made, with the words of one language."""

    language: str
    found: list[Finding] = field(default_factory=list)

    def add(self, check: str, verdict: str, text: str, **values: Any) -> None:
        """One more; `text` names a pair of sentences in `check_words`, which `values` go into."""
        detail, remedy = (part.format(**values) for part in TEXTS[text][self.language])
        self.found.append(Finding(check, verdict, _one_line(detail), _one_line(remedy)))

    def ok(self, check: str, text: str, **values: Any) -> None:
        self.add(check, OK, text, **values)

    def warn(self, check: str, text: str, **values: Any) -> None:
        self.add(check, WARNING, text, **values)

    def fail(self, check: str, text: str, **values: Any) -> None:
        self.add(check, FAILED, text, **values)

    def skip(self, check: str, because: str) -> None:
        """Not tried, since the check `because` failed."""
        self.add(check, SKIPPED, "skipped", because=NAMES[because][self.language])

    def has_failed(self, *checks: str) -> bool:
        return any(one.verdict == FAILED and one.check in checks for one in self.found)

    @contextmanager
    def going_on(self, check: str) -> Iterator[None]:
        """Inside, an error is one more thing that has failed, and does not end the rest."""
        from kunren.cli.run_config import words_of

        try:
            yield
        except Exception as error:
            told = _one_line(words_of(error))
            earlier = next((one for one in self.found if one.verdict == FAILED and one.detail == told), None)
            if earlier is None or earlier.check == check:
                self.fail(check, "error", error=told)
            else:  # one mistake is one failure
                self.skip(check, earlier.check)

    @property
    def status(self) -> int:
        """What the command ends with."""
        return 1 if any(one.verdict == FAILED for one in self.found) else 0

    def as_list(self) -> list[dict[str, str]]:
        return [asdict(one) for one in self.found]

    def table(self, seconds: float, width: int | None = None) -> str:
        """Three columns; what to do stands below what is wrong."""
        language = self.language
        names = [NAMES[one.check][language] for one in self.found]
        verdicts = [WORDS[language][one.verdict] for one in self.found]
        first, second = _widest([*names, WORDS[language]["check"]]), _widest([*verdicts, WORDS[language]["verdict"]])
        columns = _columns(width)
        head = [WORDS[language][name] for name in ("check", "verdict", "detail")]
        lines = [f"{_filled(head[0], first)}  {_filled(head[1], second)}  {head[2]}"]
        indent = first + second + 4
        for one, name, verdict in zip(self.found, names, verdicts, strict=True):
            begin = f"{_filled(name, first)}  {_filled(verdict, second)}  "
            detail = wrapped(one.detail, columns, indent) or [""]
            lines += [begin + detail[0][indent:], *detail[1:]]
            lines += wrapped(f"-> {one.remedy}", columns, indent + 3, first=indent) if one.remedy else []
        return "\n".join([*lines, "", self._counts(seconds)])

    def _counts(self, seconds: float) -> str:
        counts = {verdict: sum(one.verdict == verdict for one in self.found) for verdict in (FAILED, WARNING, OK)}
        return WORDS[self.language]["counts"].format(seconds=f"{seconds:.1f}", **counts)


def _one_line(text: str) -> str:
    return printable(" ".join(text.split()))


def _widest(texts: Sequence[str]) -> int:
    return max(map(columns_of, texts))


def _filled(text: str, columns: int) -> str:
    return text + " " * (columns - columns_of(text))


def _columns(width: int | None) -> int:
    found = shutil.get_terminal_size((_WIDEST, 24)).columns if width is None else width
    return max(_NARROWEST, min(found, _WIDEST))
