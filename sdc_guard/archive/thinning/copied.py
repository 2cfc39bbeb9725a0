"""Making a copy of a checkpoint's weights: written beside, read back, proven; then renamed."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import torch

from ...errors import CheckpointMismatch, CheckpointUnreadable
from ...store.atomic import fsync_file, fsync_folder
from ..compare import ByteCheck, check_bytes, checksum
from ..folders import WEIGHTS, WEIGHTS_FILE, free_copy_name
from ..manifest import FILE, Manifest, TensorEntry
from ..manifest import WEIGHTS as FORMAT
from ..save import new_partial, tensors_in
from .payloads import stored_weights


def write_copy(archive: Path, folder: Path, manifest: Manifest) -> Path:
    """Write a copy of a checkpoint's weights, and prove it; not under its name yet.

    Each tensor of it must have the H, S1 and S2 that the checkpoint's manifest has for that tensor,
    after it was read back from the synced file. So a checkpoint that rotted gives no copy.

    Args:
        archive: the archive's folder.
        folder, manifest: of the whole checkpoint, a clean one.

    Returns:
        the copy's folder, with its manifest in it, whose name begins with a dot.

    Raises:
        CheckpointUnreadable, CheckpointMismatch: the checkpoint is damaged, or holds no weights
            that are known. Nothing is left behind.
        OSError, RuntimeError: as the file system or torch.save gave it; likewise.
    """
    partial = new_partial(archive, manifest.step)
    partial.mkdir()
    try:
        payload = stored_weights(folder, manifest)
        entries = {name: _plain(manifest.tensors[name]) for name in tensors_in(payload)}
        torch.save(payload, partial / WEIGHTS_FILE)
        fsync_file(partial / WEIGHTS_FILE)
        _proven(partial, _manifest_of(partial, folder, manifest, entries)).write(partial)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, KeyError):
            what = f"tensor {error} is not in its manifest"
            raise CheckpointUnreadable(what, where=str(folder)) from None
        raise
    return partial


def _plain(entry: TensorEntry) -> TensorEntry:
    """One as manifests of a single file have it: the file says dtype and shape itself."""
    return replace(entry, dtype=None, shape=None, placements=None)


def _manifest_of(
    partial: Path, folder: Path, manifest: Manifest, entries: dict[str, TensorEntry]
) -> Manifest:
    origin = {
        "format": manifest.format,
        "bytes": manifest.bytes,
        "xxh3": checksum(folder / FILE),
        "thinned": time.time(),
    }
    size = (partial / WEIGHTS_FILE).stat().st_size
    return Manifest(
        manifest.step, manifest.trace_step, manifest.attempt, "clean", (), WEIGHTS_FILE, size,
        entries, manifest.created, format=FORMAT, world_size=manifest.world_size,
        layout=manifest.layout, environment=manifest.environment, origin=origin,
    )  # fmt: skip


def _proven(partial: Path, draft: Manifest) -> Manifest:
    found: ByteCheck = check_bytes(partial, draft)
    if not found.sound:
        raise CheckpointMismatch(
            f"its weights are not those that were saved: {found.reasons()[0]}", where=str(partial)
        )
    return replace(draft, xxh3=checksum(partial / WEIGHTS_FILE))


def proven_copy(archive: Path, manifest: Manifest) -> Path | None:
    """The copy that there is already of a checkpoint, if its bytes are right; else None.

    A process that was killed between giving the copy its name and removing the checkpoint leaves
    one.
    """
    for folder in _copies(archive):
        try:
            copy = Manifest.read(folder)
            if _of_the_same(copy, manifest) and check_bytes(folder, copy).sound:
                return folder
        except CheckpointUnreadable:
            continue
    return None


def publish_copy(archive: Path, partial: Path, manifest: Manifest) -> Path:
    """Give a copy its name, synced.

    Raises:
        OSError: as the file system gave it.
    """
    while True:
        folder = free_copy_name(archive, manifest.step, manifest.attempt)
        try:
            partial.rename(folder)
            break
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
    fsync_folder(archive)
    return folder


def _copies(archive: Path) -> Iterable[Path]:
    return sorted(one for one in archive.glob(f"{WEIGHTS}*") if not one.is_symlink())


def _of_the_same(copy: Manifest, whole: Manifest) -> bool:
    """Whether a copy was made of this checkpoint: by its tensors' digests, too."""
    same = (copy.step, copy.attempt, copy.created) == (whole.step, whole.attempt, whole.created)
    return (
        same
        and copy.format == FORMAT
        and {n for n, one in whole.tensors.items() if one.kind == "param"} <= copy.tensors.keys()
        and all(
            name in whole.tensors and entry.digest == whole.tensors[name].digest
            for name, entry in copy.tensors.items()
        )
    )
