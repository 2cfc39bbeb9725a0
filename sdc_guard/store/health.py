"""What the guard knows of its own troubles."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

_log = logging.getLogger("sdc_guard")


@dataclass
class Health:
    """What the guard knows of its own state.

    Attributes:
        written: rows published and acknowledged.
        dropped: rows given up because the queue or the backlog was full, because they do not
            fit their table, or because the disk still refused them at the end.
        errors: things that went wrong inside the guard and did not reach the training.
        last_error: the newest of them, one line.
        alerts: how many were raised, by (detector, severity).
    """

    written: int = 0
    dropped: int = 0
    errors: int = 0
    last_error: str = ""
    alerts: dict[tuple[str, str], int] = field(default_factory=dict)
    told: set[str] = field(default_factory=set, repr=False)

    def trouble(self, where: str, error: BaseException) -> None:
        """Count an error, keep its text, and tell of each kind of place once."""
        self.errors += 1
        self.last_error = " ".join(f"{where}: {type(error).__name__}: {error}".split())
        if where not in self.told:
            self.told.add(where)
            _log.warning("SDC Guard: %s; training goes on", self.last_error)
