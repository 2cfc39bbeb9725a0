"""All that a report says, gathered once and written in three forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from sdc_guard.store.machines import Machine

from ..checkpoint import Checkpoint
from ..proven_alerts import ProvenAlert
from ..result import STORED_BYTES

State = Literal["corrupt", "suspect", "clean", "unknown"]
Part = Literal["sign", "exponent", "mantissa", "bit"]

WHERE_ONLY: Final = (
    "The rank recorded that at its start: it says which machine to look at, not that it is broken."
)
MAX_ALERTS: Final = 200  # rows of the alerts' table
MAX_CHECKPOINTS: Final = 300
MAX_LOG_LINES: Final = 300
MAX_SESSIONS: Final = 20  # told in words; JSON has all
MAX_ATTEMPTS: Final = 20


@dataclass(frozen=True)
class Bit:
    """A bit of a word: its place, 0 the lowest, what it is part of, and its two values."""

    position: int
    part: Part
    before: int
    after: int

    @property
    def flipped(self) -> bool:
        """Whether it changed."""
        return self.before != self.after


@dataclass(frozen=True)
class LocatedElement:
    """An element that is proven to have changed, bit by bit.

    Attributes:
        kind, name, index: which: kind of tensor, its name, element counted row by row.
        dtype: of its words; None where it is not known, and then every part is "bit".
        before, after: its bits in hexadecimal.
        before_value, after_value: its values as text.
        bits: from the highest to the lowest.
    """

    kind: str
    name: str
    index: int
    dtype: str | None
    before: str
    after: str
    before_value: str | None
    after_value: str | None
    bits: tuple[Bit, ...]

    @property
    def flipped(self) -> tuple[Bit, ...]:
        """The bits that changed, from the highest to the lowest."""
        return tuple(bit for bit in self.bits if bit.flipped)


@dataclass(frozen=True)
class GoBack:
    """Where to go on from.

    Attributes:
        step, path, status: of the checkpoint; None where there is none to advise.
        why: what the advice rests on, or why there is none.
        command: the recorded resume command, filled in for that checkpoint; None if none is known.
        then: commands that say more, with what each is for.
        needed: False where only files are damaged: nothing says that the training has to go back,
            and the step is of the newest checkpoint to restore from where one is wanted.
        grounds: what is known for that checkpoint, in a few words; "" where `why` says it.
    """

    step: int | None
    path: str | None
    status: str | None
    why: str
    command: str | None = None
    then: tuple[tuple[str, str], ...] = ()
    needed: bool = True
    grounds: str = ""


@dataclass(frozen=True)
class Headline:
    """The answer.

    Attributes:
        state: "corrupt" by an exact comparison only; "suspect" by a statistic, a command or an
            open incident; "clean" where what was recorded or judged is, else "unknown".
        sentence: it, in one sentence.
        rests_on: what it rests on, a sentence each.
        limits: what it does not claim, a sentence each.
        last_clean, first_corrupt: steps; None where there is none.
        exact: whether no step lies between them that may be the first.
        proven: whether an exact comparison convicts.
        rank: that it happened on; None where that is not known.
        machine: where that rank ran, by its own record; None where that is not known.
        kind, verdict: class of the fault, and the replay ladder's verdict.
        elements: what is located, bit by bit.
        tensors: all that differ, as they are stored.
        source: what says so: a session's name, "alerts", "checkpoints", or "".
        damaged_files: steps of checkpoints whose stored bytes are wrong, of those judged.
        training: what is known of the training beside a damaged file: verdict, last_clean,
            first_corrupt, proven, reason; None without one.
        unreadable: checkpoints that cannot be read: step, path, reason.
        sound, accused: steps that the session's judges called clean, and nobody corrupt; and those
            that one of them called corrupt.
        searched: the session that searched and found nothing, where alerts say otherwise.
        repeated: the session that replayed the suspected steps to the same bits; "" without one.
        unread_bytes: how many checkpoints, of those that can be, nobody has read since they were
            saved, as far as the sessions tell.
        apart: where the first proof is that ranks differ, that alert.
    """

    state: State
    sentence: str
    rests_on: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    last_clean: int | None = None
    first_corrupt: int | None = None
    exact: bool = False
    proven: bool = False
    rank: int | None = None
    kind: str | None = None
    verdict: str | None = None
    elements: tuple[LocatedElement, ...] = ()
    tensors: tuple[Mapping[str, Any], ...] = ()
    source: str = ""
    damaged_files: tuple[int, ...] = ()
    training: Mapping[str, Any] | None = None
    unreadable: tuple[Mapping[str, Any], ...] = ()
    sound: tuple[int, ...] = ()
    accused: tuple[int, ...] = ()
    searched: str = ""
    repeated: str = ""
    unread_bytes: int = 0
    apart: ProvenAlert | None = None
    machine: Machine | None = None

    @property
    def is_of_files(self) -> bool:
        """Whether what was found first is a damaged file: the training is another question."""
        return self.kind == STORED_BYTES and bool(self.damaged_files)

    @property
    def interval(self) -> tuple[int | None, int] | None:
        """Last clean and first corrupt step of the training's state; None where none is known."""
        if not self.is_of_files:
            found = (self.last_clean, self.first_corrupt)
        else:
            known = self.training or {}
            wrong = known.get("verdict") == "corrupt"
            found = (known.get("last_clean"), known.get("first_corrupt")) if wrong else (None, None)
        low, high = found
        return None if high is None else (low, high)


@dataclass(frozen=True)
class Recorded:
    """What a guard recorded.

    Attributes:
        steps, first, last: how many different ones, and the ends; None where there is none.
        skipped: steps whose update was not applied.
        layers, attempts, world_size, ranks: how many; `ranks` have recorded steps.
        digests: of state, in all.
        compared, possible: transitions of a tensor from step to step.
        shadow, shadow_unequal: passes, and those that did not repeat bit for bit.
    """

    steps: int
    first: int | None
    last: int | None
    skipped: int
    layers: int
    attempts: int
    world_size: int
    ranks: int
    digests: int
    compared: int
    possible: int
    shadow: int
    shadow_unequal: int

    @property
    def share(self) -> float:
        """Of the transitions, those that were compared; 1 when there was none."""
        return min(self.compared / self.possible, 1.0) if self.possible else 1.0


@dataclass(frozen=True)
class Curve:
    """A series over the steps, thinned.

    Attributes:
        name: "loss", "gradient norm" or "state digested".
        points: (step, value); finite; at most curves.MAX_POINTS.
        undrawn: (step, what, count) of values that are NaN or infinite.
        width: steps that share a bin; 1 where nothing is left out.
    """

    name: str
    points: tuple[tuple[int, float], ...]
    undrawn: tuple[tuple[int, str, int], ...] = ()
    width: int = 1


@dataclass(frozen=True)
class AlertRow:
    """The alerts of one step, detector and severity.

    Attributes:
        step, detector, severity: which.
        layer: the name of the one with the largest score; "" for the whole step.
        layers: how many different ones.
        ranks: those that raised one.
        score, threshold: of the one with the largest score.
        text: what it says.
    """

    step: int
    detector: str
    severity: str
    layer: str
    layers: int
    ranks: tuple[int, ...]
    score: float | None
    threshold: float | None
    text: str


@dataclass(frozen=True)
class Attempted:
    """One start of the training process.

    Attributes:
        attempt, first_step, started: which; seconds since the epoch.
        environment: its fingerprint.
        changed: against the attempt before: name, before, now.
        digest_budget: percent of a step's time; None for all tensors at all steps.
    """

    attempt: int
    first_step: int
    started: float
    environment: Mapping[str, Any]
    changed: tuple[tuple[str, Any, Any], ...]
    digest_budget: float | None


@dataclass(frozen=True)
class Judged:
    """One judging of a session: what, how, by whom, and when (seconds since the epoch)."""

    step: int
    verdict: str
    reason: str
    by: str
    at: float | None
    seconds: float | None


@dataclass(frozen=True)
class Told:
    """A search or verification.

    Attributes:
        name, folder: where it is kept.
        command: "run", "verify" or "session".
        is_open: whether it goes on.
        is_current: whether the run was not started again since.
        began, finished: seconds since the epoch; None where that is not known.
        judged: in their order.
        result: as it is stored; None while there is none.
        sentence: the result in words; "" without one.
        log: its log, a line each; empty where it has none. Cut to MAX_LOG_LINES.
        notes: what is damaged, or left out.
    """

    name: str
    folder: str
    command: str
    is_open: bool = False
    is_current: bool = True
    began: float | None = None
    finished: float | None = None
    judged: tuple[Judged, ...] = ()
    result: Mapping[str, Any] | None = None
    sentence: str = ""
    log: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Report:
    """A report.

    Attributes:
        name, place: of the run or archive.
        source: "run" that a guard recorded, or "archive".
        made: when, in seconds since the epoch.
        versions: of what made the report.
        headline, go_back: the answer, and what to do.
        recorded: by a guard; None for an archive.
        curves: over the steps.
        alerts: at most MAX_ALERTS rows.
        alert_steps: all rows' (step, severity), thinned for a figure.
        alert_count: how many alerts there are in all.
        recurring: what attempts have in common.
        checkpoints: all of them, by step.
        remarks: where some seem to be missing, and which step has several.
        sessions: oldest first.
        attempts: oldest first.
        blind: what the guard told that it cannot see: step, event, detail.
        unseen: what else was not seen, a sentence each.
        damaged: file and reason.
    """

    name: str
    place: str
    source: Literal["run", "archive"]
    made: float
    versions: Mapping[str, str]
    headline: Headline
    go_back: GoBack
    recorded: Recorded | None = None
    curves: tuple[Curve, ...] = ()
    alerts: tuple[AlertRow, ...] = ()
    alert_steps: tuple[tuple[int, str], ...] = ()
    alert_count: int = 0
    recurring: tuple[str, ...] = ()
    checkpoints: tuple[Checkpoint, ...] = ()
    remarks: tuple[str, ...] = ()
    sessions: tuple[Told, ...] = ()
    attempts: tuple[Attempted, ...] = ()
    blind: tuple[tuple[int, str, str], ...] = ()
    unseen: tuple[str, ...] = ()
    damaged: tuple[tuple[str, str], ...] = ()

    @property
    def results(self) -> list[dict[str, Any]]:
        """The sessions' results as they are stored, oldest first."""
        return [dict(one.result) for one in self.sessions if one.result is not None]

    def told_checkpoints(self) -> list[Checkpoint]:
        """At most MAX_CHECKPOINTS: those that are not clean, and the nearest to the answer."""
        if len(self.checkpoints) <= MAX_CHECKPOINTS:
            return list(self.checkpoints)
        middle = self.headline.first_corrupt
        if middle is None:
            middle = self.checkpoints[-1].step

        def rank(one: Checkpoint) -> tuple[bool, int]:
            is_plain = one.readable and one.status in ("clean", "untested")
            return is_plain, abs(one.step - middle)

        nearest = sorted(self.checkpoints, key=rank)[:MAX_CHECKPOINTS]
        return sorted(nearest, key=lambda one: (one.step, one.attempt, one.path.name))

    def judged_of(self, step: int) -> tuple[str, ...]:
        """What sessions of the run as it is now found of a step's checkpoint, by each judge."""
        found: dict[str, str] = {}
        for told in self.sessions:
            if told.is_current:
                found |= {one.by: one.verdict for one in told.judged if one.step == step}
        return tuple(f"{verdict} by {by}" if by else verdict for by, verdict in found.items())

    def told_sessions(self) -> tuple[Told, ...]:
        """The newest MAX_SESSIONS, and the one that answers; oldest first."""
        first = len(self.sessions) - MAX_SESSIONS
        return tuple(
            one
            for place, one in enumerate(self.sessions)
            if place >= first or self.headline.source == f"session {one.name}"
        )

    def told_attempts(self) -> tuple[Attempted, ...]:
        """The first, and the newest MAX_ATTEMPTS before which something changed; and the last."""
        changed = [one for one in self.attempts if one.changed][-MAX_ATTEMPTS:]
        told = {one.attempt for one in (*self.attempts[:1], *changed, *self.attempts[-1:])}
        return tuple(one for one in self.attempts if one.attempt in told)
