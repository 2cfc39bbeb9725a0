"""Writing a checkpoint: the file, its proof, the manifest, and the pointer last."""

from __future__ import annotations

import contextlib
import errno
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import torch

from ..detect.carried import Key
from ..detect.counters import KIND as COUNTER
from ..digest import Digest, digest_tensor
from ..errors import CheckpointUnreadable
from ..store.atomic import fsync_file, fsync_folder, publish_text
from .compare import ByteCheck, check_bytes, checksum
from .inert_pickle import by_path
from .manifest import Manifest, Status, TensorEntry
from .other_step import Around, Named, of_other_steps
from .torch_file import is_plain, read_torch_file

STATE_FILE = "state.pt"
LATEST = "LATEST"
ABANDONED_SECONDS = 3600.0
NOT_COMPARED: Final = (
    "its tensors are none that the trace has digests of, or copies: nothing is compared with the "
    "step"
)


def save_checkpoint(
    archive: Path,
    step: int,
    attempt: int,
    payload: Mapping[str, Any],
    expected: dict[str, TensorEntry],
    doubts: list[str],
    *,
    trace_step: int | None = None,
    untested: str = "",
    around: Around = dict,
) -> tuple[Path, Manifest]:
    """Write `payload` as the checkpoint of `step`.

    The folder appears under its final name only when the file has been read back and the
    manifest is in it; `LATEST` moves last. A process that dies on the way leaves a folder whose
    name starts with a dot, and the old `LATEST`.

    Args:
        archive: the run's archive folder.
        payload: what `torch.save` is given.
        expected: the digest that each tensor of the payload must have, by dotted path.
        doubts: reasons known beforehand why this checkpoint is not clean.
        trace_step: the guard's own number of the step, if it differs from `step`.
        untested: why nothing is known of it, though nothing speaks against it.
        around: what the steps around it left; called only if tensors differ from their digests.

    Raises:
        OSError, RuntimeError: as the file system or torch.save gave it; the old checkpoints are
            untouched.
    """
    archive.mkdir(parents=True, exist_ok=True)
    delete_abandoned(archive, time.time())
    partial = new_partial(archive, step)
    partial.mkdir()
    try:
        torch.save(dict(payload), partial / STATE_FILE)
        fsync_file(partial / STATE_FILE)
        identity = step, step if trace_step is None else trace_step, attempt
        manifest = _seal(partial, identity, expected, doubts, untested, around)
        folder = published(partial, archive, step, attempt)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    fsync_folder(archive)
    publish_text(archive / LATEST, folder.name + "\n")
    return folder, manifest


def tensors_in(payload: Any) -> dict[str, torch.Tensor]:
    """The tensors of a nested payload by dotted path, named as `read_torch_file` names them.

    Tensors without plain memory (sparse, quantized, nested, meta) are passed over: they are
    saved, but not proven.
    """
    return by_path(_walk(payload, ()))


def shards_in(payload: Any) -> list[str]:
    """A reason for doubt if tensors of a payload are shards: one rank's file is not the whole."""
    found = [path for path, tensor in _walk(payload, (), shards=True)]
    if not found:
        return []
    return [f"{len(found)} tensors are one rank's shards and not proven ({found[0]} first)"]


def _walk(
    node: Any, path: tuple[str, ...], *, shards: bool = False
) -> Iterator[tuple[str, torch.Tensor]]:
    if isinstance(node, torch.Tensor):
        if hasattr(node, "placements") if shards else is_plain(node):
            yield ".".join(path), node
    elif isinstance(node, Mapping):
        for key, value in node.items():
            yield from _walk(value, (*path, str(key)), shards=shards)
    elif isinstance(node, (list, tuple)):
        for index, value in enumerate(node):
            yield from _walk(value, (*path, str(index)), shards=shards)


def expected_digests(
    payload: Mapping[str, Any],
    state: Mapping[Key, torch.Tensor],
    recorded: Mapping[Key, Digest],
    layer_names: Mapping[int, str],
) -> dict[str, TensorEntry]:
    """The digest that each tensor of a payload must have.

    A tensor that shares its memory with traced state must have the digest that the trace
    recorded after the step, so that a change between step and save is seen. For the others
    (buffers, generator state) the digest is taken now.
    """
    at = {(t.data_ptr(), t.numel()): key for key, t in state.items() if t.numel()}
    entries = {}
    for path, tensor in tensors_in(payload).items():
        key = at.get((tensor.data_ptr(), tensor.numel()))
        if key is not None and key in recorded and key[0] == COUNTER:
            entries[path] = TensorEntry.of(recorded[key])  # the trace has no digest of it
        elif key is not None and key in recorded:
            entries[path] = TensorEntry.of(recorded[key], key[0], layer_names[key[1]])
        else:
            entries[path] = TensorEntry.of(digest_tensor(tensor))
    return entries


def uncompared(expected: Iterable[TensorEntry]) -> str:
    """Why no tensor of a checkpoint is compared with the trace; "" if one is, or it has none.

    Copies, as a full state dict is made of, have the digest that was taken of the copy.
    """
    entries = list(expected)
    if not entries or any(entry.kind is not None for entry in entries):
        return ""
    return NOT_COMPARED


def _seal(
    folder: Path,
    identity: tuple[int, int, int],
    expected: dict[str, TensorEntry],
    doubts: list[str],
    untested: str,
    around: Around,
) -> Manifest:
    size = (folder / STATE_FILE).stat().st_size
    draft = Manifest(*identity, "untested", (), STATE_FILE, size, expected, time.time())
    whole = ""
    try:
        check = check_bytes(folder, draft)
        reasons = [*doubts, *(_of_another_step(folder, draft, check, around) or check.reasons())]
        whole = checksum(folder / STATE_FILE)
    except CheckpointUnreadable as error:
        reasons = [*doubts, str(error)]
    status: Status = "suspect" if reasons else "untested" if untested else "clean"
    reasons += [untested] if untested else []
    manifest = replace(draft, status=status, reasons=tuple(reasons), xxh3=whole)
    manifest.write(folder)
    return manifest


def _of_another_step(folder: Path, draft: Manifest, check: ByteCheck, around: Around) -> list[str]:
    """What to say if all that is wrong is as another step left it; [] if it is not.

    What the trace has no digests of, as step counters, is passed over if there is more.
    """
    traced = [one for one in check.mismatches if one.kind and one.layer]
    if not traced or check.missing or check.crc or check.unlisted:
        return []
    stored = read_torch_file(folder / STATE_FILE).tensors
    wrong: dict[str, tuple[Named, Digest]] = {
        one.name: ((one.kind, one.layer), digest_tensor(stored[one.name])) for one in traced
    }
    return of_other_steps(draft.trace_step, wrong, around())


def new_partial(archive: Path, step: int) -> Path:
    """A name for the folder of a checkpoint that is being written; nobody else has it."""
    return archive / f".step={step:06d}.{secrets.token_hex(6)}.partial"


def published(partial: Path, archive: Path, step: int, attempt: int) -> Path:
    """Give a checkpoint its name. Another rank may take a free one first."""
    while True:
        folder = _free_name(archive, step, attempt)
        try:
            return partial.rename(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise


def _free_name(archive: Path, step: int, attempt: int) -> Path:
    """step=000100, or step=000100-a2 where an earlier attempt's is kept under that name."""
    folder = archive / f"step={step:06d}"
    copies = 0
    while folder.exists():
        folder = archive / f"step={step:06d}-a{attempt}{f'.{copies}' if copies else ''}"
        copies += 1
    return folder


def delete_abandoned(archive: Path, now: float) -> None:
    """Delete what killed processes left half-written: nothing there has changed for an hour.

    And what they left half-deleted.
    """
    for leftover in archive.glob(".step=*.deleted"):
        shutil.rmtree(leftover, ignore_errors=True)
    for partial in archive.glob(".step=*.partial"):
        with contextlib.suppress(OSError):
            changed = max(path.stat().st_mtime for path in (partial, *partial.iterdir()))
            if now - changed > ABANDONED_SECONDS:
                shutil.rmtree(partial, ignore_errors=True)
