"""The digests of a sealed checkpoint's tensors: which of them changed, and not only which file.

A seal's checksums are of whole files. Beside them it keeps of each tensor dtype, shape and the
digest that a guard's manifest has, too (see `sdc_guard.digest`): where a file is another one, the
digests name the tensors, and of a single changed element the index and the bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from sdc_guard.archive.compare import solve_change
from sdc_guard.archive.nonfinite import nonfinite
from sdc_guard.archive.sealing.seal_file import SealedTensor
from sdc_guard.digest import digest_tensor
from sdc_guard.errors import CheckpointUnreadable

from .checkpoint import Checkpoint
from .checkpoint_diff import dtype_name
from .content import Content, Integrity, StoredTensor
from .readers.known import reader_of

_PLACE: Final = " (element "  # of a single change


def sealed_tensors(checkpoint: Checkpoint) -> dict[str, SealedTensor]:
    """Every tensor of a checkpoint as it is now, one after the other in memory.

    What cannot be read has none: the checksum of its file is all that there is of it.

    Raises:
        CheckpointUnreadable: what the checkpoint holds cannot be told.
    """
    found = {}
    for name, stored in reader_of(checkpoint.format).open(checkpoint).tensors.items():
        try:
            tensor = stored.read()
        except CheckpointUnreadable:
            continue
        found[name] = SealedTensor(
            dtype_name(stored.dtype),
            tuple(stored.shape),
            digest_tensor(tensor),
            nonfinite(tensor).nan,
        )
    return found


def nan_in_words(sealed: Mapping[str, SealedTensor]) -> str:
    """That what was sealed held NaN: its bytes are kept, and its values are not sound; or ""."""
    odd = [name for name, one in sealed.items() if one.nan]
    if not odd:
        return ""
    more = f" and {len(odd) - 1:,} more" if len(odd) > 1 else ""
    return f"; its values are not sound: NaN in {odd[0]}{more}"


def with_named_tensors(
    checkpoint: Checkpoint,
    found: Integrity,
    sealed: Mapping[str, SealedTensor],
    anew: str = "",
) -> Integrity:
    """What reading a checkpoint showed, with the tensors that changed since it was sealed.

    Args:
        checkpoint: one with a seal, of which a file is not what was sealed.
        found: what was found of it.
        sealed: its tensors when it was sealed; {} in a seal of version 1.
        anew: what else may have happened, where most of it is another one and reads as sound.
    """
    if not found.damaged:
        return found
    if not sealed:
        return _with_hint(found, anew)
    try:
        content = reader_of(checkpoint.format).open(checkpoint)
    except (CheckpointUnreadable, OSError):
        return found  # that it cannot be read is told already
    changed = {
        name: why
        for name, one in sealed.items()
        if name not in found.damaged and (why := _changed(_now(content, name), one))
    }
    changed |= {
        name: "not in it when it was sealed"
        for name in content.tensors
        if name not in sealed and name not in found.damaged
    }
    damaged = {**found.damaged, **changed}
    if not changed and not any(name in content.tensors for name in damaged):
        none = "no tensor in it changed: names, sizes, numbers or what nothing refers to"
        damaged = {name: f"{why}; {none}" for name, why in damaged.items()}
    intact = tuple(name for name in sealed if name not in damaged)
    unchecked = tuple(name for name in found.unchecked if name not in {*intact, *damaged})
    told = replace(found, damaged=damaged, intact=intact, unchecked=unchecked)
    other = sum(_PLACE not in why for why in changed.values())
    return _with_hint(told, anew) if 2 * other >= len(sealed) else told


def _with_hint(found: Integrity, anew: str) -> Integrity:
    """The same; the first thing that is wrong with it ends in what else may have happened."""
    if not anew:
        return found
    name, why = next(iter(found.damaged.items()))
    return replace(found, damaged={**found.damaged, name: f"{why}; {anew}"})


def _now(content: Content, name: str) -> StoredTensor | None:
    return content.tensors.get(content.aliases.get(name, name))


def _changed(now: StoredTensor | None, sealed: SealedTensor) -> str:
    """How a tensor is not what was sealed; "" if it is."""
    if now is None:
        return "not in the file, and it was when it was sealed"
    kind, shape = dtype_name(now.dtype), tuple(now.shape)
    if (kind, shape) != (sealed.dtype, sealed.shape):
        was = f"{sealed.dtype} {list(sealed.shape)}"
        return f"{kind} {list(shape)}, and {was} when it was sealed"
    try:
        tensor = now.read()
    except CheckpointUnreadable as error:
        return error.what
    digest = digest_tensor(tensor)
    if digest == sealed.digest:
        return ""
    change = solve_change(tensor, sealed.digest, digest)
    where = "" if change is None else f"{_PLACE}{change.index}, bits {change.bits})"
    return f"not the bits that were sealed{where}"
