"""What the user asks of what is kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .holds import GRACE
from .latency import HORIZON
from .names import DEFAULT

SUSPECTS: Final = 2


@dataclass(frozen=True)
class Rule:
    """What the user asks for.

    Attributes:
        count: clean checkpoints that are kept beside those that are held.
        policy: which of them, by name.
        weights: how many more are kept as copies of their weights alone; None to make none, and to
            leave those alone that there are.
        suspects: how many of the others are kept, the newest ones.
        horizon: days.
        grace: seconds in which what is untested stays.
        spacing: days and steps between two saves; None for what the newest ones show.
    """

    count: int
    policy: str = DEFAULT
    suspects: int = SUSPECTS
    horizon: float = HORIZON
    grace: float = GRACE
    spacing: tuple[float, float] | None = None
    weights: int | None = None
