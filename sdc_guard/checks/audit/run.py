"""Running kept steps again, here and elsewhere, and judging what comes of it."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

import torch

from ...detect.ladder import Elsewhere, Finding, Repeats, judge, wants_another
from ...signals.restoration import ParameterWritten
from ..answers.probe import written_in
from .doubts import same_loss, why_not_shown
from .elsewhere import Places
from .kept_step import KeptStep
from .limits import hooks_on_gradients
from .package import Package, packed
from .prelude import Prelude
from .report import AuditReport
from .step_replay import (
    AuditFailed,
    NotComparable,
    Result,
    in_words,
    original_of,
    put_back_after,
    rewind,
    run_again,
)
from .subject import Subject

_GIVEN_UP: Final = 3  # audits that fail or differ without one that repeated
_LOSS_WANTED: Final = (
    "audit(model, batch) takes the model and the batch that guard.observe() was given, and returns "
    "the scalar loss whose backward() the script calls"
)
UNSEEN: Final = (
    "the step's forward was not seen: give the Guard the module that the script calls, compiled by "
    "torch.compile(model) if at all"
)


class GiveUp(Exception):
    """No step of this training is to be run again.

    Args:
        reason: in words.
    """


@dataclass(frozen=True)
class _Evidence:
    original: Result
    here: list[Result]
    elsewhere: list[Elsewhere]

    @property
    def repeats(self) -> bool:
        """Whether every replay here gave what the step gave."""
        return all(result == self.original for result in self.here)

    def differing(self, names: Collection[str]) -> list[str]:
        """Names of the gradients that differ in the first replay that does."""
        others = [r for place in self.elsewhere for r in place.results if isinstance(r, Result)]
        odd = (result for result in [*self.here, *others] if result != self.original)
        return self.original.differing(next(odd, self.original), list(names))


class AuditRun:
    """Runs steps again, and remembers how earlier ones repeated.

    Args:
        subject: what is run.
        places: where else.
        report: tells of it.

    Attributes:
        busy: whether a call of the model comes from here, and not from the training.
        written: names of parameters that the forward itself writes to; None before the first look.
    """

    def __init__(self, subject: Subject, places: Places, report: AuditReport) -> None:
        self.prelude = Prelude(subject)
        self.busy = False
        self.written: set[str] | None = None
        self._subject, self._places, self._report = subject, places, report
        self._before = Repeats()
        self._losses_agreed = False
        self._newest: _Evidence | None = None
        self._look_failed = ""  # not told until a replay works: it may be the function itself
        self._failed = 0  # audits by the function's own fault; none once it worked

    def with_subject(self, subject: Subject) -> None:
        """Layers changed: the next step is looked at first."""
        self.prelude, self.written = Prelude(subject), None
        self._subject = subject
        self._places.subject = subject

    def look(self, step: int, kept: KeptStep) -> None:
        """Run a step's first forward, to learn what a replay must know.

        Raises:
            GiveUp: there can be none.
        """
        self.busy = True
        self.prelude.look_begins()
        try:
            self.written = written_in(kept)
        except NotComparable as error:
            raise GiveUp(str(error)) from None
        except Exception as error:  # noqa: BLE001 - because the script's function may raise anything
            self.written = set()  # not every operation runs while it is watched
            self._look_failed = f"the first look at it failed: {in_words(error)}"
        finally:
            self.busy = False
            self.prelude.look_ended()

    def __call__(self, step: int, kept: KeptStep | None, *, scheduled: bool, alerted: bool) -> None:
        """Run a step again, and report.

        Args:
            step: its number.
            kept: the step, or None if it was not seen to begin.
            scheduled: whether all ranks audit it.
            alerted: whether a detector suspects it.

        Raises:
            GiveUp: no other step is to be run again.
        """
        started = time.perf_counter()
        here: list[Result] = []
        package: Package | None = None
        self.busy = True
        try:
            reason = UNSEEN if kept is None else kept.complete()
            if kept is not None and not reason:
                package, reason = self._here(kept, here)
            original = None if kept is None or reason else original_of(kept)
            seconds = (time.perf_counter() - started) / max(len(here), 1)
            elsewhere = self._places.ask(
                step, package, kept, self.written or (), seconds, scheduled=scheduled
            )
        finally:
            self.busy = False
        if kept is None or original is None:
            if self._failed >= _GIVEN_UP:
                raise GiveUp(reason)
            self._report.not_comparable(step, reason)
            return
        if self._look_failed:
            self._report.not_comparable(step, self._look_failed)
            self._look_failed = ""
        self._newest = _Evidence(original, here, elsewhere)
        self._conclude(step, kept, self._newest, alerted=alerted, started=started)

    def suspected(self, step: int) -> bool:
        """A detector suspects the step; False if it has not been run again yet."""
        newest = self._newest
        if newest is None:
            return False
        if newest.repeats:
            finding = self._judged(newest, alerted=True)
            places = [place.place for place in newest.elsewhere]
            self._report.audited(step, finding, len(newest.here), places, 0.0)
            if finding.verdict == "data or software":
                self._report.found(step, finding, [], "")
        return True

    def forget(self) -> None:
        """The step is over."""
        self._newest = None

    def _here(self, kept: KeptStep, results: list[Result]) -> tuple[Package | None, str]:
        """The step for others, if there are any, and why it cannot be compared."""
        try:
            with put_back_after(self._subject, kept.by_value):
                while wants_another(original_of(kept), results, self._before):
                    results.append(run_again(kept, self.prelude))
                rewind(kept)
                return packed(kept) if self._places else None, ""
        except ParameterWritten as error:
            raise GiveUp(f"{error}, which it had not done at the first step") from None
        except NotComparable as error:
            return None, str(error)
        except AuditFailed as error:
            if self._before == Repeats():
                self._failed += 1
            return None, f"the function given as audit failed: {error}; {_LOSS_WANTED}"
        except Exception as error:  # noqa: BLE001 - because autograd may raise anything
            return None, f"running it again failed: {in_words(error)}"

    def _judged(self, evidence: _Evidence, *, alerted: bool) -> Finding:
        return judge(
            evidence.original, evidence.here, evidence.elsewhere, self._before, alerted=alerted
        )

    def _conclude(
        self, step: int, kept: KeptStep, evidence: _Evidence, *, alerted: bool, started: float
    ) -> None:
        if not evidence.repeats and kept.gradients.began_with_values:
            self._report.not_comparable(step, "gradients were not zero when the forward began")
            return
        before = self._before
        if not evidence.repeats and before.shown and hooks_on_gradients(self._subject):
            self._report.not_comparable(
                step, "a hook of the script runs on accumulated gradients, and may change them"
            )
            return
        finding = self._judged(evidence, alerted=alerted)
        self._before = Repeats(
            before.matched + evidence.repeats,
            before.differed + (not evidence.repeats),
            _deterministic(self._subject),
        )
        self._places.learn(evidence.original, evidence.elsewhere)
        for reason in self._places.reasons():
            self._report.not_comparable(step, reason)
        places = [place.place for place in evidence.elsewhere]
        seconds = time.perf_counter() - started
        self._report.audited(step, finding, len(evidence.here), places, seconds)
        loss = self._loss(kept, evidence)
        if not evidence.repeats and not before.shown:
            self._not_shown(step, kept, evidence)
        elif finding.differs or finding.verdict == "data or software":
            self._report.found(step, finding, evidence.differing(kept.subject.names), loss)

    def _loss(self, kept: KeptStep, evidence: _Evidence) -> str:
        """How the replays' loss compares with the observed one: "" where it never was the same."""
        replayed = evidence.here[0].losses
        equal = all(map(same_loss, kept.micro_batches, replayed))
        self._losses_agreed = self._losses_agreed or equal
        if not self._losses_agreed:
            return ""  # a script may observe another one than it calls backward() of
        return "equal" if equal else "differs"

    def _not_shown(self, step: int, kept: KeptStep, evidence: _Evidence) -> None:
        """A step differed, and that means nothing: perhaps no step of this training repeats."""
        reason, losses = why_not_shown(
            evidence.here,
            kept.micro_batches,
            matched=self._before.matched,
            hooked=hooks_on_gradients(self._subject),
        )
        if self._before.matched == 0 and self._before.differed >= _GIVEN_UP:
            raise GiveUp(f"{reason}{losses}")
        self._report.not_comparable(step, reason, losses)


def _deterministic(subject: Subject) -> bool:
    """Whether a difference is unlikely to be the kernels' own."""
    return subject.device.type == "cpu" or torch.are_deterministic_algorithms_enabled()
