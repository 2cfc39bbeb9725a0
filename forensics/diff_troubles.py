"""What is wrong with compared checkpoints themselves, told before how they differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sdc_guard.archive.nonfinite import NonFinite

from .checkpoint import Checkpoint
from .checkpoint_diff import TensorDiff
from .content import Content
from .oracles.integrity import read_bytes

BYTES: Final = "bytes"
VALUES: Final = "values"


@dataclass(frozen=True)
class Trouble:
    """Something wrong with one of the checkpoints.

    Attributes:
        of: its letter: A, B or C.
        about: "bytes" where a checksum proves damage, "values" where they are not finite.
        what: in words.
        tensor: its name; None where no tensor is concerned.
    """

    of: str
    about: str
    what: str
    tensor: str | None = None

    @property
    def line(self) -> str:
        """In a line."""
        where = "" if self.tensor is None else f" (tensor {self.tensor})"
        return f"{self.of}: {self.what}{where}"

    def as_dict(self) -> dict[str, Any]:
        """In JSON output."""
        return {
            "checkpoint": self.of, "about": self.about, "what": self.what, "tensor": self.tensor
        }  # fmt: skip


def damage_of(letter: str, one: Checkpoint, content: Content) -> list[Trouble]:
    """Bytes of a checkpoint that are not those that were written, as far as checksums go.

    Reads every byte of it.
    """
    found = read_bytes(one).integrity
    if found is None:
        return []  # that it cannot be read is told where it is opened
    names = {*content.tensors, *content.aliases}
    return [
        Trouble(letter, BYTES, why, name)
        if name in names
        else Trouble(letter, BYTES, f"{name}: {why}")
        for name, why in found.damaged.items()
    ]


def odd_values(letters: Sequence[str], name: str, found: Sequence[NonFinite]) -> Iterator[Trouble]:
    """NaN in a tensor, and infinities where not all of the checkpoints have as many.

    Infinities that all have are those of a mask.

    Args:
        letters: of the checkpoints.
        name: of the tensor.
        found: of each, what is not finite.
    """
    masks = len({one.infinite for one in found}) == 1
    for letter, one in zip(letters, found, strict=True):
        parts = [f"{one.nan:,} NaN"] if one.nan else []
        parts += [f"{one.infinite:,} infinite"] if one.infinite and not masks else []
        if parts:
            text = f"{' and '.join(parts)}, the first at {one.first}"
            yield Trouble(letter, VALUES, text, name)


def of_values(found: Iterable[TensorDiff]) -> list[Trouble]:
    """What is not finite in two checkpoints, those of A first."""
    told = [
        trouble
        for one in found
        if one.nonfinite is not None
        for trouble in odd_values("AB", one.name, one.nonfinite)
    ]
    return sorted(told, key=lambda trouble: trouble.of)
