"""The options of a search, as they are typed, and what they ask for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from sdc_guard.errors import UsageError

from ..search.asked import Asked, Noise
from .numbers import JOBS, LONGEST, RUNS, STEP, Number

Command = TypeVar("Command", bound=Callable[..., Any])


def _steps(_: click.Context, __: click.Parameter, value: str) -> tuple[int, ...]:
    """Steps with commas between: 250,300."""
    try:
        return tuple(int(step) for step in value.split(",") if step.strip())
    except ValueError:
        raise UsageError(
            "steps are whole numbers with commas between", where=value, next_step="--skip 250,300"
        ) from None


_RATE = Number(0, 0.5, min_open=True, max_open=True)
_WHERE = (
    click.option(
        "--skip",
        default="",
        show_default=False,
        callback=_steps,
        metavar="STEPS",
        help="Not to judge: 250,300.",
    ),
    click.option("--good", type=STEP, metavar="STEP", help="Search from here (the first)."),
    click.option("--bad", type=STEP, metavar="STEP", help="Search up to here (the last)."),
    click.option("--trust-ends", is_flag=True, help="Do not judge the two ends."),
    click.option(
        "--first-good", is_flag=True, help="Find the first clean one after corrupt ones instead."
    ),
    click.option("--scan", is_flag=True, help="Judge every one, and list every transition."),
)
_JOBS = (
    click.option(
        "--jobs",
        type=JOBS,
        default=1,
        show_default=True,
        metavar="N",
        help="Judge N at once: fewer rounds, more judgings.",
    ),
    click.option(
        "--executor",
        type=click.Choice(["local", "ray"]),
        default="local",
        show_default=True,
        help="Where COMMAND runs: here, or on a Ray cluster that sees the same paths.",
    ),
)
_ERRS = (
    click.option("--noisy", is_flag=True, help="The judge errs; its rates may be unknown."),
    click.option(
        "--false-positive",
        type=_RATE,
        metavar="RATE",
        help="How often clean is called corrupt (unknown).",
    ),
    click.option(
        "--false-negative",
        type=_RATE,
        metavar="RATE",
        help="How often corrupt is called clean (unknown).",
    ),
    click.option(
        "--repeatable/--random-oracle",
        default=None,
        help="Whether a noisy judge says the same of a checkpoint each time (default), or not.",
    ),
)
_REPEAT = (
    click.option(
        "--repeat",
        type=RUNS,
        default=1,
        metavar="N",
        help="Run a judge that fails by chance N times: one failure is corrupt.",
    ),
)
_CONFIDENCE = (
    click.option(
        "--confidence",
        type=Number(0.5, 1, min_open=True, max_open=True),
        default=0.95,
        show_default=True,
        metavar="PROBABILITY",
        help="Where chance has a part: the probability to stop at.",
    ),
)
_PLAN = (
    click.option("--dry-run", is_flag=True, help="Say how many judgings it takes; judge nothing."),
    click.option(
        "--cost",
        type=Number(0, LONGEST),
        metavar="SECONDS",
        help="What one judging by COMMAND takes, for --dry-run.",
    ),
)


@dataclass(frozen=True)
class SearchOptions:
    """What was typed; the names are those of the options."""

    skip: tuple[int, ...]
    good: int | None
    bad: int | None
    trust_ends: bool
    first_good: bool
    scan: bool
    noisy: bool
    false_positive: float | None
    false_negative: float | None
    repeatable: bool | None
    confidence: float
    repeat: int = 1
    jobs: int = 1
    executor: str = "local"
    dry_run: bool = False
    cost: float | None = None

    def asked(self) -> Asked:
        """What the options ask for together.

        Raises:
            UsageError: they contradict each other.
        """
        noisy = self.noisy or self.false_positive is not None or self.false_negative is not None
        self._check(noisy)
        noise = None
        if noisy:
            repeatable = self.repeatable is not False
            noise = Noise(self.false_positive, self.false_negative, repeatable)
        return Asked(
            skip=self.skip,
            good=self.good,
            bad=self.bad,
            trust_ends=self.trust_ends,
            first_good=self.first_good,
            scan=self.scan,
            repeat=self.repeat,
            noise=noise,
            confidence=self.confidence,
        )

    def _check(self, noisy: bool) -> None:
        together = (
            (noisy and self.repeat > 1, "--noisy", "--repeat", "--noisy repeats by itself"),
            (noisy and self.scan, "--noisy", "--scan", ""),
            (noisy and self.trust_ends, "--noisy", "--trust-ends", ""),
            (self.repeat > 1 and self.scan, "--repeat", "--scan", ""),
            (self.repeat > 1 and self.trust_ends, "--repeat", "--trust-ends", ""),
            (self.repeat > 1 and self.first_good, "--repeat", "--first-good", ""),
            (
                self.repeat > 1 and self.repeatable is True,
                "--repeat",
                "--repeatable",
                "what is repeatable needs one run",
            ),
            (self.scan and self.trust_ends, "--scan", "--trust-ends", ""),
        )
        for both, one, other, why in together:
            if both:
                raise UsageError(f"give {one} or {other}, not both", next_step=why)
        if self.repeatable is False and not noisy and self.repeat == 1:
            raise UsageError(
                "--random-oracle needs to know how to deal with it",
                next_step="--repeat N, where one failure is corrupt; or --noisy, where either "
                "answer may be wrong",
            )


# options of `run` that are about what is searched, not about how it is carried out
OF_THE_SEARCH = (
    "skip", "good", "bad", "trust_ends", "first_good", "scan", "noisy", "false_positive",
    "false_negative", "repeatable", "repeat", "confidence",
)  # fmt: skip


def search_options(command: Command) -> Command:
    """Adds the options of a search; a command gets them as keyword arguments."""
    for option in reversed((*_WHERE, *_JOBS, *_ERRS, *_REPEAT, *_CONFIDENCE, *_PLAN)):
        command = option(command)
    return command


def session_options(command: Command) -> Command:
    """Adds those of a search that goes on from command to command, whoever judges."""
    for option in reversed((*_WHERE, *_ERRS, *_CONFIDENCE)):
        command = option(command)
    return command
