"""The replay ladder: what a step that was run again says of its fault, and how surely.

Compared are digests of each gradient, never the number that raised an alarm. A rung is reached
only by its own evidence:

intermittent              the step differs from its replays here, which agree with each other, and
                          this training was shown to repeat bit for bit here before
persistent on a device    it repeats here, and places that agreed with this one before differ;
                          the device is named only where two others agree with each other
data or software          an alert's step repeats here, and elsewhere
undetermined              anything else
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from .proportion import wilson

Verdict = Literal[
    "sound", "intermittent", "persistent on a device", "data or software", "undetermined"
]
VERDICTS: Final = (
    "intermittent", "persistent on a device", "data or software", "storage", "undetermined",
)  # fmt: skip
MOST_REPLAYS: Final = 3  # here
# Lower end of Wilson's interval of the share of audits that repeated. Three of three reach the
# first one; the second one takes 22, for kernels that may add in another order each time.
_SHOWN, _SHOWN_OTHERWISE = 0.4, 0.85


@dataclass(frozen=True)
class Repeats:
    """How earlier audited steps of this training repeated here.

    Attributes:
        matched: audits in which every replay equalled the step.
        differed: audits in which one did not.
        deterministic: whether kernels are asked to repeat bit for bit, or known to.
    """

    matched: int = 0
    differed: int = 0
    deterministic: bool = True

    @property
    def share(self) -> float:
        """What the share of steps that repeat is at least, at 95 %."""
        return wilson(self.matched, self.matched + self.differed)[0]

    @property
    def shown(self) -> bool:
        """Whether a difference means anything."""
        return self.share >= (_SHOWN if self.deterministic else _SHOWN_OTHERWISE)


@dataclass(frozen=True)
class Elsewhere:
    """The replays of a step on another device or rank.

    Attributes:
        place: its name.
        results: one or more.
        matched: earlier audits in which it agreed with this device.
    """

    place: str
    results: tuple[Hashable, ...]
    matched: int


@dataclass(frozen=True)
class Finding:
    """What a step run again says.

    Attributes:
        verdict: "sound" where there is no fault to judge.
        place: the device that is named; "here", or None.
        confidence: at least the probability, at 95 %, of the repetition that the verdict rests
            on; 0 where it rests on none.
        reason: in words.
        harmed: whether the step itself is not what it should be.
        differs: whether anything differed from the step.
    """

    verdict: Verdict
    place: str | None
    confidence: float
    reason: str
    harmed: bool = False
    differs: bool = False


def wants_another(original: Hashable, here: Sequence[Hashable], before: Repeats) -> bool:
    """Whether one more replay here would tell more.

    The first audit runs a step twice, to see whether replays agree with each other at all.
    """
    if not here:
        return True
    if len(here) >= MOST_REPLAYS:
        return False
    if all(result == original for result in here):
        return len(here) < (2 if before.matched == 0 else 1)
    if len(here) == 1:
        return True
    return original in here  # one of them is odd: which?


def judge(
    original: Hashable,
    here: Sequence[Hashable],
    elsewhere: Sequence[Elsewhere],
    before: Repeats,
    *,
    alerted: bool,
) -> Finding:
    """The highest rung that the evidence reaches.

    Args:
        original: what the step gave.
        here: what its replays on the same device gave.
        elsewhere: replays on others.
        before: how this training repeated until now, this step not counted.
        alerted: whether a detector suspects this step.
    """
    if not here:
        return Finding("undetermined", None, 0.0, "the step was not run again")
    if any(result != original for result in here):
        return _differs_here(original, here, elsewhere, before)
    return _repeats_here(original, elsewhere, before, alerted=alerted)


def _differs_here(
    original: Hashable,
    here: Sequence[Hashable],
    elsewhere: Sequence[Elsewhere],
    before: Repeats,
) -> Finding:
    def undetermined(reason: str) -> Finding:
        return Finding("undetermined", None, 0.0, reason, differs=True)

    if original in here:
        return undetermined("of several replays here one differs, and the step is not the odd one")
    if len(here) < 2:
        return undetermined("the step differs from its one replay: either may be wrong")
    if len(set(here)) > 1:
        return undetermined("the replays here differ from each other: this step does not repeat")
    if not before.shown:
        advice = "" if before.deterministic else ": torch.use_deterministic_algorithms(True)"
        return undetermined(
            f"this training was not shown to repeat here ({before.matched} steps did, "
            f"{before.differed} did not){advice}"
        )
    if any(original in other.results for other in elsewhere):
        return undetermined("the replays here agree, and the step agrees with one elsewhere")
    settled = [other for other in elsewhere if other.matched]
    if any(set(other.results) != {here[0]} for other in settled):
        return undetermined("the step, its replays here and those elsewhere all differ")
    also = f", and with {_named(settled)}" if settled else ""
    reason = (
        f"{len(here)} replays here agree with each other{also}, and the step differs from them; "
        f"{before.matched} of {before.matched + before.differed} earlier steps repeated"
    )
    return Finding("intermittent", "here", before.share, reason, harmed=True, differs=True)


def _repeats_here(
    original: Hashable, elsewhere: Sequence[Elsewhere], before: Repeats, *, alerted: bool
) -> Finding:
    equal = [other for other in elsewhere if set(other.results) == {original}]
    other = [place for place in elsewhere if original not in place.results and place.matched]
    agreed = [place for place in other if len(place.results) > 1 and len(set(place.results)) == 1]
    if equal:
        odd = f"; {_named(other)} differs from both" if other else ""
        if alerted:
            reason = f"the step repeats here and on {_named(equal)}{odd}"
            total = before.matched + before.differed
            sure = wilson(before.matched + 1, total + 1)[0]  # with this step
            return Finding("data or software", None, sure, reason)
        return Finding("sound", None, before.share, f"it repeats here and elsewhere{odd}")
    if len(agreed) >= 2 and len({place.results[0] for place in agreed}) == 1:
        reason = (
            f"the step repeats here, and {_named(agreed)} agree with each other on another result; "
            "they agreed with this device before"
        )
        sure = _surest(agreed, before)
        return Finding("persistent on a device", "here", sure, reason, harmed=True, differs=True)
    if len(agreed) == 1 and len(other) == 1:
        reason = (
            f"the step repeats here and, with another result, on {agreed[0].place}, which agreed "
            "before: one of the two; two devices do not tell which"
        )
        sure = _surest(agreed, before) / 2
        return Finding("persistent on a device", None, sure, reason, harmed=True, differs=True)
    if other:
        reason = "the step repeats here, and the replays elsewhere do not agree with each other"
        return Finding("undetermined", None, 0.0, reason, differs=True)
    if alerted:
        reason = (
            "the step repeats here: no intermittent fault; a replay elsewhere, which there was not,"
            " would tell this device from data and software"
        )
        return Finding("undetermined", None, 0.0, reason)
    return Finding("sound", None, before.share, "it repeats here")


def _surest(places: Sequence[Elsewhere], before: Repeats) -> float:
    fewest = min(place.matched for place in places)
    return min(before.share, wilson(fewest, fewest)[0]) if fewest else 0.0


def _named(places: Sequence[Elsewhere]) -> str:
    return " and ".join(place.place for place in places)
