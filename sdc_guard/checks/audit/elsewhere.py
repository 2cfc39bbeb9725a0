"""Where else a step is run: on other devices of this process, or by neighbouring ranks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import torch

from ...detect.ladder import Elsewhere
from ...ranks import Ranks
from .kept_step import KeptStep
from .neighbours import Answer, Neighbours
from .package import Package, copied_to, on_copy, original_in, run_packed
from .step_replay import Result, in_words, put_back_after, rewind
from .subject import Subject, device_serial

_MOST_DEVICES = 2  # with this one they are three, of which two can outvote one


class Places:
    """The places, and how often each agreed with this device.

    Args:
        subject: what is run.
        devices: others of this process, of the same kind.
        neighbours: other ranks.
    """

    def __init__(
        self,
        subject: Subject,
        devices: Sequence[torch.device] = (),
        neighbours: Neighbours | None = None,
    ) -> None:
        self.subject = subject
        self._devices, self._neighbours = list(devices), neighbours
        self._matched: dict[str, int] = {}
        self._kept: KeptStep | None = None  # while others are asked
        self._reasons: list[str] = []

    @classmethod
    def of(cls, subject: Subject, ranks: Ranks, run: Path, attempt: int) -> Places:
        """Those that this training has."""
        if ranks.world_size > 1:
            return cls(subject, (), Neighbours(run, attempt, ranks))
        return cls(subject, _like(subject.device))

    def __bool__(self) -> bool:
        return bool(self._devices) or self._neighbours is not None

    def ask(
        self,
        step: int,
        package: Package | None,
        kept: KeptStep | None,
        by_value: Collection[str],
        seconds: float,
        *,
        scheduled: bool,
    ) -> list[Elsewhere]:
        """Have the step run elsewhere.

        Args:
            package: the step, or None if it cannot be run.
            kept: the same, for what does not travel.
            by_value: names of parameters that a forward writes to.
            seconds: that a replay takes here.
            scheduled: whether all ranks audit this step.
        """
        neighbours = self._neighbours
        asked = scheduled and neighbours is not None and not neighbours.silent
        found: list[Elsewhere | None] = []
        if not (asked or (package is not None and self._devices)):
            return []
        self._kept = kept if package is not None else None
        with put_back_after(self.subject, by_value):
            if package is not None:
                self._rewind()
                found += [self._on_device(device, package) for device in list(self._devices)]
            if asked and neighbours is not None:
                place = device_serial(self.subject.device)
                answers = neighbours.exchange(step, package, self._answer, seconds, place)
                found += [self._of_answer(answer) for answer in answers if package is not None]
                if neighbours.silent:
                    self._reasons.append(
                        f"{neighbours.silent} did not answer in time; no other rank is asked any "
                        "more"
                    )
        self._kept = None
        return [place for place in found if place is not None]

    def learn(self, original: Result, elsewhere: Sequence[Elsewhere]) -> None:
        """Count the places that agreed."""
        for other in elsewhere:
            if set(other.results) == {original}:
                self._matched[other.place] = other.matched + 1
            elif not other.matched:
                self._reasons.append(f"{other.place} never agreed with this device until now")

    def reasons(self) -> list[str]:
        """Why some places were of no use, since the last call."""
        reasons, self._reasons = self._reasons, []
        return reasons

    def close(self) -> None:
        """Leave nothing in the run's folder."""
        if self._neighbours is not None:
            self._neighbours.tidy()

    def _answer(self, package: Package) -> list[Result]:
        """A neighbour's step run by this rank: twice, where the first time differs."""
        original = original_in(package)
        results: list[Result] = []
        while not results or (len(results) < 2 and results[0] != original):
            self._rewind()  # attributes, say, which do not travel
            results.append(run_packed(package, self.subject))
        return results

    def _rewind(self) -> None:
        if self._kept is not None:
            rewind(self._kept)

    def _of_answer(self, answer: Answer) -> Elsewhere | None:
        if not answer.results:
            if answer.reason:
                self._reasons.append(f"not run on {answer.place}: {answer.reason}")
            return None
        return Elsewhere(answer.place, answer.results, self._matched.get(answer.place, 0))

    def _on_device(self, device: torch.device, package: Package) -> Elsewhere | None:
        place = device_serial(device)
        try:
            copied = copied_to(self.subject, device)
            results = [on_copy(package, copied)]
            if results[0] != original_in(package):
                results.append(on_copy(package, copied))
        except Exception as error:  # noqa: BLE001 - because a model may refuse in any way
            self._reasons.append(f"not run on {device}: {in_words(error)}")
            self._devices.remove(device)
            return None
        return Elsewhere(place, tuple(results), self._matched.get(place, 0))


def _like(device: torch.device) -> list[torch.device]:
    """Other accelerators of the same kind that this process sees."""
    if device.type != "cuda":
        return []
    kind = torch.cuda.get_device_name(device)
    others = [torch.device("cuda", i) for i in range(torch.cuda.device_count())]
    alike = [d for d in others if d != device and torch.cuda.get_device_name(d) == kind]
    return alike[:_MOST_DEVICES]
