"""One checkpoint of several files: each has a prefix, or none, for its tensors' names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ..content import Content, Integrity, StoredTensor


def joined(parts: Iterable[tuple[str, Content]]) -> Content:
    """Prefix and content of each part, as one; the step is the first that a part says."""
    tensors: dict[str, StoredTensor] = {}
    aliases: dict[str, str] = {}
    numbers: dict[str, int | float | str | bool] = {}
    foreign: dict[str, str] = {}
    step = None
    for prefix, part in parts:
        for name, tensor in part.tensors.items():
            tensors.setdefault(prefix + name, tensor)
        for name, kept in part.aliases.items():
            aliases.setdefault(prefix + name, prefix + kept)
        numbers |= {prefix + name: value for name, value in part.numbers.items()}
        foreign |= {prefix + name: kind for name, kind in part.foreign.items()}
        step = part.step if step is None else step
    return Content(tensors, aliases, numbers, foreign, step)


@dataclass
class JoinedIntegrity:
    """What reading the parts showed so far."""

    damaged: dict[str, str] = field(default_factory=dict)
    intact: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    bytes: int = 0
    why: dict[str, str] = field(default_factory=dict)

    def add(self, prefix: str, part: Integrity) -> None:
        """Add what reading one part showed."""
        self.damaged |= {prefix + name: reason for name, reason in part.damaged.items()}
        self.intact += [prefix + name for name in part.intact]
        self.unchecked += [prefix + name for name in part.unchecked]
        self.bytes += part.bytes
        self.why |= {prefix + name: reason for name, reason in part.why.items()}

    def done(self) -> Integrity:
        """Everything."""
        intact, unchecked = tuple(self.intact), tuple(self.unchecked)
        return Integrity(self.damaged, intact, unchecked, self.bytes, self.why)
