"""How a search is to go, as the caller asks for it; steps are those of checkpoints."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Noise:
    """An oracle that errs.

    Attributes:
        false_positive, false_negative: its rates, in (0, 0.5); None where unknown.
        repeatable: whether it answers the same of the same checkpoint, errors too.
    """

    false_positive: float | None = None
    false_negative: float | None = None
    repeatable: bool = True


@dataclass(frozen=True)
class Asked:
    """The options of a search.

    Attributes:
        skip: steps that are not to be judged.
        good, bad: steps between which to search; None for the first and the last.
        trust_ends: do not judge the two ends.
        first_good: look for the first clean one after corrupt ones.
        scan: judge every one.
        repeat: runs per judging, of an oracle that answers by chance.
        noise: of an oracle that errs; None for one that does not.
        confidence: of the answer, where chance has a part in it.
    """

    skip: tuple[int, ...] = ()
    good: int | None = None
    bad: int | None = None
    trust_ends: bool = False
    first_good: bool = False
    scan: bool = False
    repeat: int = 1
    noise: Noise | None = None
    confidence: float = 0.95

    @property
    def by_chance(self) -> bool:
        """Whether chance has a part in the answers."""
        return self.repeat > 1 or self.noise is not None
