"""The tensors of a copied checkpoint against their digests: what was written is read again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from ...digest import Digest, digest_tensor
from ...errors import CheckpointMismatch, CheckpointUnreadable
from ..inert_pickle import StoredTensor, by_path, stored_tensors
from ..manifest import SHARDED, Manifest
from ..sealing.contents import contents_of
from ..sealing.seal_file import Seal
from ..sharded.opened import OpenedFolder
from ..torch_file import rebuild
from ..torch_records import TorchRecords, torch_records, torch_structure
from .candidates import Candidate
from .copying import NEXT_STEP

_MASK = (1 << 64) - 1
Found = Iterable[tuple[str, bool]]
"""Names of tensors, and whether they have their digests."""


def prove_tensors(one: Candidate, copied: Path, jobs: int) -> int:
    """Read the copy's tensors and compare them with the digests that they must have.

    Args:
        one: the checkpoint that was copied.
        copied: its copy, a folder or a file.
        jobs: tensors read at once.

    Returns:
        how many were compared.

    Raises:
        CheckpointMismatch: one differs, or is not there; `where` is the original.
        CheckpointUnreadable: the copy cannot be read as a checkpoint.
    """
    try:
        calls = _calls(one, copied)
        with ThreadPoolExecutor(max(1, jobs)) as pool:
            found = [item for part in pool.map(lambda call: list(call()), calls) for item in part]
    except CheckpointUnreadable as error:
        raise CheckpointUnreadable(error.what, where=str(one.path), next_step=NEXT_STEP) from None
    wrong = [name for name, same in found if not same]
    if wrong:
        more = f", and {len(wrong) - 1:,} more tensors" if len(wrong) > 1 else ""
        raise CheckpointMismatch(
            f"{wrong[0]}: bytes differ from the recorded digest{more}",
            where=str(one.path),
            next_step=NEXT_STEP,
        )
    return len(found)


def _calls(one: Candidate, copied: Path) -> list[Callable[[], Found]]:
    if one.seal is not None:
        return list(_of_seal(one.seal, copied))
    assert one.manifest is not None
    if one.manifest.format == SHARDED:
        return list(_of_shards(one.manifest, copied))
    return list(_of_file(one.manifest, copied / one.manifest.file))


def _of_file(manifest: Manifest, path: Path) -> Iterator[Callable[[], Found]]:
    records = torch_records(path)
    structure = torch_structure(records)
    stored = by_path(stored_tensors(structure.root, structure.size))
    groups: dict[str, dict[str, StoredTensor]] = {}
    for name, tensor in stored.items():
        groups.setdefault(tensor.key, {})[name] = tensor
    for key, held in groups.items():
        yield partial(_record, records, f"data/{key}", held, manifest)
    strange = manifest.tensors.keys() ^ stored.keys()
    yield lambda: [(name, False) for name in sorted(strange)]


def _record(
    records: TorchRecords, record: str, held: dict[str, StoredTensor], manifest: Manifest
) -> Found:
    try:
        content = records.read(record)
        raw = torch.frombuffer(content, dtype=torch.uint8) if content else torch.empty(0).byte()
        for name, stored in held.items():
            if name in manifest.tensors:
                found = digest_tensor(rebuild(raw, stored))
                yield name, found == manifest.tensors[name].digest
    except Exception as error:  # noqa: BLE001 - because damaged records raise errors of every kind
        why = str(error) or type(error).__name__
        what = f"{next(iter(held))}: cannot be read ({why})"
        raise CheckpointUnreadable(what, where=str(records.path)) from None


def _of_shards(manifest: Manifest, copied: Path) -> Iterator[Callable[[], Found]]:
    opened = OpenedFolder(copied, replace(manifest, status="clean"))  # digests are taken here
    for name, entry in manifest.tensors.items():
        yield partial(_pieces, opened, name, entry.digest)


def _pieces(opened: OpenedFolder, name: str, expected: Digest) -> Found:
    """Each piece has its digest, and all of them together that of the whole tensor."""
    sums = [0, 0, 0]
    for one in opened.written.get(name, ()):
        if not one.piece.is_value and one.piece.entry is not None:
            for place, value in enumerate(one.piece.digest_of(opened.tensor(one))):
                sums[place] = (sums[place] + value) & _MASK
    yield name, Digest(*sums) == expected


def _of_seal(seal: Seal, copied: Path) -> Iterator[Callable[[], Found]]:
    held = contents_of(copied).tensors
    for name, sealed in seal.digests.items():
        if name in held:
            yield partial(_sealed, name, held[name].read, sealed.digest)


def _sealed(name: str, read: Callable[[], torch.Tensor], expected: Digest) -> Found:
    yield name, digest_tensor(read()) == expected
