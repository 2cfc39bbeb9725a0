"""Records of a run as the pages use them, and what follows from them without a query."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

_QUIET_SECONDS: Final = 60.0
STATUSES: Final = ("clean", "suspect", "corrupt", "untested")


@dataclass(frozen=True)
class Counted:
    """What takes a pass over all layers and digests to know; see `Coverage`.

    Attributes:
        newest: the newest step when it was counted.
    """

    layers_measured: int
    digests: int
    digest_steps: int
    watched: float | None = None
    newest: int | None = None


@dataclass(frozen=True)
class Coverage:
    """What was checked, and how much of the run that is.

    Attributes:
        steps: number of steps recorded; `first` to `newest`, which was recorded at `newest_time`
            (seconds since the epoch).
        ranks: how many ranks recorded steps, of `world_size`.
        layers: number of layers; of `layers_measured` a gradient was measured.
        digests: exact comparisons of a tensor between two steps, over `digest_steps` steps.
        shadow_passes: number of them; `shadow_unequal` did not repeat bit for bit.
        proven, suspected: number of alerts from exact comparisons and from statistics.
        damaged: path in the trace's folder and reason of each file that could not be opened.
        watched: share of the state's transitions from step to step that were compared, for a run
            with a digest budget; None for one that compares them all.
        blind: what the guard told that it cannot see, a line each.
        is_counted: whether layers_measured, digests, digest_steps and watched are known: a page
            does not wait for them.
        counted_to: the newest step when they were counted; of a run that grows it may lag.
    """

    steps: int
    first: int | None
    newest: int | None
    newest_time: float | None
    ranks: int
    world_size: int
    layers: int
    layers_measured: int
    digests: int
    digest_steps: int
    shadow_passes: int
    shadow_newest: int | None
    shadow_unequal: int
    proven: int
    suspected: int
    damaged: tuple[tuple[str, str], ...]
    watched: float | None = None
    blind: tuple[str, ...] = ()
    is_counted: bool = True
    counted_to: int | None = None

    @property
    def lags(self) -> bool:
        """Whether steps were recorded since it was counted."""
        return self.is_counted and self.counted_to is not None and self.counted_to != self.newest


@dataclass(frozen=True)
class Incident:
    """One incident as it is now; `alerts` are counted now, `evidence` is what was stored."""

    attempt: int
    rank: int
    opened: int
    closed: int | None
    verdict: str
    evidence: dict[str, Any]
    alerts: int

    @property
    def proven(self) -> bool:
        """Whether an exact comparison is among its evidence."""
        return self.evidence.get("proven") is True

    @property
    def key(self) -> str:
        """Its name in a URL: the step that opened it, and the rank unless that is 0."""
        return str(self.opened) if self.rank == 0 else f"{self.opened}.{self.rank}"


@dataclass(frozen=True)
class Alert:
    """One alert; `detail` is empty where what was stored is not a JSON object."""

    step: int
    rank: int
    layer: str
    detector: str
    score: float
    threshold: float
    severity: str
    detail: dict[str, Any]


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint; `bytes` is its size. `deleted`: what was saved is not there any more.

    `convicted`: that it is suspect was proven after it was saved, whatever it was then.
    """

    step: int
    path: str
    format: str
    bytes: int | None
    status: str
    reason: str
    deleted: bool = False
    convicted: bool = False


@dataclass(frozen=True)
class Newest:
    """The newest step, when it was recorded (seconds since the epoch), and its duration (s).

    `ended` tells that the guard of the newest attempt was closed.
    """

    step: int
    time: float | None
    seconds: float | None
    ended: bool = False


def is_quiet(newest: Newest, now: float) -> bool:
    """Whether the next step is long overdue at the moment `now` (seconds since the epoch)."""
    return newest.time is not None and now - newest.time > max(
        _QUIET_SECONDS, 5 * (newest.seconds or 0.0)
    )


def checkpoint_bracket(found: Sequence[Checkpoint]) -> tuple[int | None, int] | None:
    """(last clean, first suspect or corrupt checkpoint], or None without such a checkpoint."""
    bad = min((c.step for c in found if c.status in ("suspect", "corrupt")), default=None)
    if bad is None:
        return None
    return max((c.step for c in found if c.status == "clean" and c.step < bad), default=None), bad


def resumable(found: Sequence[Checkpoint]) -> Checkpoint | None:
    """The newest clean checkpoint that is still there and lies before the first bad one."""
    bracket = checkpoint_bracket(found)
    usable = [
        c
        for c in found
        if c.status == "clean" and not c.deleted and (bracket is None or c.step < bracket[1])
    ]
    return max(usable, key=lambda c: c.step, default=None)


def status_counts(found: Sequence[Checkpoint]) -> dict[str, int]:
    """How many checkpoints have each status that occurs, the sound ones first."""
    counts = Counter(checkpoint.status for checkpoint in found)
    return {status: counts[status] for status in STATUSES if counts[status]}
