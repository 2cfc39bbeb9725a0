"""What a guard may be asked from another thread than the training's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..guard import Guard


@dataclass(frozen=True)
class GuardState:
    """A guard at one moment.

    Attributes:
        run: the run's folder.
        rank: of its process.
        step: number of the newest step that ended; None before the first.
        written: rows on disk.
        dropped: rows given up.
        errors: troubles that did not reach the training, those of the disk among them.
        queued: batches of rows that wait for the writer's thread.
        incidents_open: 0 or 1 for a rank.
        alerts: how many by (detector, severity).
    """

    run: str
    rank: int
    step: int | None
    written: int
    dropped: int
    errors: int
    queued: int
    incidents_open: int
    alerts: Mapping[tuple[str, str], int]


def guard_state(guard: Guard) -> GuardState:
    """Read a guard without touching it."""
    # not guard.step: it settles a skipped step, which is the training thread's to do
    return GuardState(
        run=str(guard.run),
        rank=guard._place.rank,
        step=guard._step - 1 if guard._stepped else None,
        written=guard.health.written,
        dropped=guard.health.dropped,
        errors=guard.health.errors,
        queued=guard._writer.queued,
        incidents_open=int(guard._recorder.incidents.open is not None),
        alerts=guard.health.alerts.copy(),
    )
