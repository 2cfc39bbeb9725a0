"""What the doctor says about one thing, and how grave it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

OK: Final = "ok"
NOTE: Final = "note"
WARNING: Final = "warning"
PROBLEM: Final = "problem"


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        level: OK, NOTE (worth knowing), WARNING (works, but not as one may think) or PROBLEM
            (something will fail, or tell what is wrong).
        subject: what was looked at, in two or three words.
        what: what was seen there.
        next_step: what the reader can do; empty where there is nothing to do.
    """

    level: str
    subject: str
    what: str
    next_step: str = ""

    def line(self) -> str:
        """As it is printed."""
        told = f"{self.level:<8} {self.subject}: {self.what}"
        return f"{told} ({self.next_step})" if self.next_step else told

    def as_object(self) -> dict[str, Any]:
        """As --json has it."""
        return {
            "level": self.level,
            "subject": self.subject,
            "what": self.what,
            "next": self.next_step,
        }


Probe = Callable[[], Iterable[Finding]]


def looked_at(probes: Iterable[tuple[str, Probe]]) -> Iterator[Finding]:
    """What each probe found; a NOTE for one that could not look.

    Args:
        probes: each with its subject.
    """
    for subject, probe in probes:
        try:
            yield from list(probe())
        except Exception as error:  # noqa: BLE001 - because what is broken here may fail in any way
            why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            yield Finding(NOTE, subject, f"could not be looked at: {why}")
