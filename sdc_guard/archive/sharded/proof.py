"""Whether the files of a sharded checkpoint hold what the step left, and what they hold if not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch

from ...digest import Digest
from ..compare import solve_change
from ..manifest import TensorEntry
from ..other_step import Around, Named, of_other_steps
from .ack import Written
from .files import elements, mapped
from .pieces import At, Piece
from .staging import Staged

_NAMED: Final = 3


def reasons_of(
    folder: Path, written: Sequence[Written], staged: Staged, step: int, around: Around
) -> list[str]:
    """Why what was written is not what the step left: read back and compared with the digests.

    Args:
        folder: where the files are.
        written: what this rank wrote; every tensor's piece has the digest that it must have.
        staged: from what it was written.
        step: of the trace.
        around: what the steps around it left; called only if something differs.

    Raises:
        OSError: a file cannot be read.
    """
    files = {name: mapped(folder / name) for name in {one.file for one in written}}
    wrong: dict[At, tuple[Piece, Digest, str]] = {}
    for one in written:
        if one.piece.is_value or one.piece.entry is None:
            continue
        tensor = elements(files[one.file], one)
        found = one.piece.digest_of(tensor)
        if found != one.piece.entry.digest:
            wrong[one.piece.at] = one.piece, found, _told(one.piece, tensor, found, staged)
    if not wrong:
        return []
    told = [why for _, _, why in wrong.values()]
    more = [f"and {len(told) - _NAMED} more tensors differ"] if len(told) > _NAMED else []
    return _of_another_step(step, wrong, around) or [*told[:_NAMED], *more]


def not_finite(pieces: Mapping[At, Piece], staged: Staged, names: Sequence[At]) -> list[str]:
    """A reason for doubt if what is trained holds NaN or an infinity, as it was copied."""
    found = []
    for at in names:
        tensor, entry = staged.tensors[at], pieces[at].entry
        if not tensor.is_floating_point() or not tensor.numel() or tensor.element_size() < 2:
            continue
        if not all(bool(value.isfinite()) for value in torch.aminmax(tensor)):
            named = at[0] if entry is None or entry.layer is None else f"{entry.layer} {entry.kind}"
            found.append(named)
    if not found:
        return []
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return [f"not finite: {', '.join(found[:_NAMED])}{more}"]


def with_own_digests(pieces: Mapping[At, Piece], staged: Staged) -> dict[At, Piece]:
    """The pieces, those that the trace says nothing of with the digest of their copy."""
    found = {}
    for at, piece in pieces.items():
        if piece.entry is None and not piece.is_value:
            entry = TensorEntry.of(piece.digest_of(staged.tensors[at]))
            piece = replace(piece, entry=entry)
        found[at] = piece
    return found


def _told(piece: Piece, tensor: torch.Tensor, found: Digest, staged: Staged) -> str:
    assert piece.entry is not None
    expected = piece.entry.digest
    held = staged.tensors.get(piece.at)
    written = held is not None and piece.digest_of(held) == expected
    what = "the file does not hold what was copied" if written else "bytes differ from the recorded"
    if not written:
        what += " digest"
    change = solve_change(tensor, expected, found, place=piece.place)
    where = f" (element {change.index}, bits {change.bits})" if change else ""
    return f"{piece.name}: {what}{where}"


def _of_another_step(
    said: int, wrong: Mapping[At, tuple[Piece, Digest, str]], around: Around
) -> list[str]:
    """What to say if all that is wrong is as another step left it; [] if it is not.

    What the trace has no digests of, as step counters, is passed over if there is more.
    """
    traced: dict[str, tuple[Named, Digest]] = {
        piece.name: ((piece.entry.kind, piece.entry.layer), found)
        for piece, found, _ in wrong.values()
        if piece.entry is not None and piece.entry.kind and piece.entry.layer
    }
    return of_other_steps(said, traced, around()) if traced else []
