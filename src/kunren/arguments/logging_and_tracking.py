"""What is reported while training runs, how often, and to whom."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Literal

from kunren.arguments.checks import at_least, enum_member, interval, one_of, refuse, whole_steps
from kunren.arguments.choices import IntervalStrategy
from kunren.arguments.group import ArgumentGroup, explained

LOG_LEVELS = {
    "detail": logging.DEBUG,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
_LOG_LEVEL_CHOICES = (*LOG_LEVELS, "passive")
_TOKEN_COUNTS = ("no", "all", "non_padding")


# What these say is the same in all processes; the first one says it.
_SAID_ONCE = ("kunren.seams", "kunren.data.batching")


def obey_log_level(args: Any) -> None:
    """Give kunren's loggers the level that the arguments ask for, and a way to the terminal where there is none."""
    name = args.log_level if args.should_log else args.log_level_replica
    kunren = logging.getLogger("kunren")
    if name in LOG_LEVELS and (args.should_log or name != "warning"):
        kunren.setLevel(LOG_LEVELS[name])
        if LOG_LEVELS[name] < logging.WARNING and not kunren.hasHandlers():  # which Python shows by itself
            kunren.addHandler(logging.StreamHandler())
    elif name == "warning":
        for part in _SAID_ONCE:
            logging.getLogger(part).setLevel(logging.ERROR)


def profiled_steps(value: str) -> tuple[int, int]:
    """The first and the last step of "10:14"; "10" is one step. ValueError for what is neither."""
    first, colon, last = str(value).partition(":")
    try:
        steps = int(first), int(last if colon else first)
    except ValueError:
        steps = 0, 0
    if not 1 <= steps[0] <= steps[1]:
        raise refuse("profile_steps", value, "give the first and the last step, counted from 1, as in '10:14'.")
    return steps


@dataclass(init=False, repr=False, eq=False)
class LoggingAndTracking(ArgumentGroup):
    logging_strategy: IntervalStrategy | str = explained("steps", "When to log: 'no', 'steps' or 'epoch'.")
    logging_steps: float = explained(500, "Log every that many steps; below 1 a share of the run.")
    logging_first_step: bool = explained(False, "Log the first step too.")
    log_on_each_node: bool = explained(True, "Let one process of each machine log; off: only one process of all.")
    logging_nan_inf_filter: bool = explained(
        False, "Replace losses that are nan or inf by the mean of the others in the log. transformers does so unasked."
    )
    include_num_input_tokens_seen: str | bool = explained(
        "no", "Count the tokens that went in: 'all', 'non_padding' or 'no'; True is 'all'."
    )
    log_level: str = explained(
        "passive", "Level of the main process's loggers; 'passive' leaves it as it is.", _LOG_LEVEL_CHOICES
    )
    log_level_replica: str = explained(
        "warning",
        "Level of the other processes' loggers; the same warnings come from the main one. 'passive': as it is.",
        _LOG_LEVEL_CHOICES,
    )
    run_report: bool = explained(
        True, "Write report.html and curves.png into the output folder when a training ends, however it ends."
    )
    peak_tflops: float | None = explained(
        None,
        "What one device can do at best, in TFLOP/s at the precision of the run: what utilisation is a share of. None: "
        "looked up by the device's name.",
    )
    profile_steps: str | None = explained(
        None,
        "Steps to write a torch profiler trace of, into profile/ in the output folder: the first and the last, counted "
        "from 1, as in '10:14'; '10' is one step, None: none.",
    )
    disable_tqdm: bool | None = explained(
        None, "Print plain lines where there would be a progress bar; None is the same as False."
    )
    report_to: None | str | list[str] = explained(
        "none", "Trackers to report to: a name, a list of names, 'all' that are installed, or 'none'."
    )
    run_name: str | None = explained(None, "The name of this run in the trackers; None: they choose one.")
    project: str = explained("huggingface", "The project of this run, in trackers that have projects.")
    trackio_space_id: str | None = explained(
        None, "Trackio: the Space on the Hub that shows the run; None: it stays on this machine."
    )
    trackio_bucket_id: str | None = explained(
        None, "Trackio: the bucket that keeps the data of the Space; None: Trackio's choice."
    )
    trackio_static_space_id: str | None | Literal[False] = explained(
        None, "Trackio: the static Space to publish to after training; False for none."
    )

    def normalise(self) -> None:
        self.logging_strategy = enum_member(IntervalStrategy, "logging_strategy", self.logging_strategy)
        self.logging_steps = whole_steps(self.logging_steps)
        counted = str(self.include_num_input_tokens_seen).lower()
        self.include_num_input_tokens_seen = {"true": "all", "false": "no", "none": "no"}.get(counted, counted)
        self.log_level = str(self.log_level).lower()
        self.log_level_replica = str(self.log_level_replica).lower()
        self.disable_tqdm = bool(self.disable_tqdm)
        steps: Any = self.profile_steps
        if isinstance(steps, (int, list, tuple)) and not isinstance(steps, bool):
            self.profile_steps = ":".join(map(str, [steps] if isinstance(steps, int) else steps))
        given = [self.report_to] if self.report_to is None or isinstance(self.report_to, str) else self.report_to
        trackers = [name for name in given if name not in (None, "", "none")]
        self.report_to = list(dict.fromkeys(str(name) for name in trackers))

    def check(self) -> None:
        if self.logging_strategy == IntervalStrategy.STEPS:
            interval(self, "logging_steps", "logging_strategy")
        at_least(self, "peak_tflops", 1e-6, "it must be above 0, as 989 for 989 TFLOP/s; None looks it up.")
        if self.profile_steps is not None:
            profiled_steps(self.profile_steps)
        one_of(self, "include_num_input_tokens_seen", _TOKEN_COUNTS)
        one_of(self, "log_level", _LOG_LEVEL_CHOICES)
        one_of(self, "log_level_replica", _LOG_LEVEL_CHOICES)
