"""Finding and loading checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..errors import (
    ArchiveIncomplete,
    CheckpointMismatch,
    CheckpointUnreadable,
    SdcGuardError,
    UsageError,
)
from ..store.lineage import Span, counts, lineage
from ..store.run_file import RunFile
from .compare import ByteCheck, check_bytes, checksum, compare_tensors
from .confirmations import read_confirmations, settled
from .convictions import attempts_of, doubts, read_convictions
from .folders import WEIGHTS_FILE, all_folders, is_copy, step_named
from .manifest import FILE, SHARDED, WEIGHTS, Manifest
from .save import STATE_FILE, tensors_in
from .sharded.files import METADATA
from .sharded.load import load_into, load_whole
from .sharded.place import Place

_log = logging.getLogger("sdc_guard")


@dataclass(frozen=True)
class Found:
    """A checkpoint folder and its manifest.

    Attributes:
        doubts: what was proven against it after it was sealed.
    """

    folder: Path
    manifest: Manifest
    doubts: tuple[str, ...] = ()

    @property
    def clean(self) -> bool:
        """Sealed as clean, and not doubted since."""
        return self.manifest.status == "clean" and not self.doubts


def checkpoints(archive: Path) -> list[Found]:
    """The sealed checkpoints of an archive folder, by step, attempt and time.

    A folder without a readable manifest is not among them.
    """
    found = []
    convictions, attempts = read_convictions(archive), attempts_of(archive)
    confirmations = read_confirmations(archive)
    for folder in archive.glob("step=*"):
        try:
            manifest = settled(folder, Manifest.read(folder), confirmations)
        except CheckpointUnreadable:
            continue
        against = doubts(folder, manifest, convictions, attempts)
        found.append(Found(folder, manifest, tuple(against)))
    return sorted(
        found, key=lambda item: (item.manifest.step, item.manifest.attempt, item.manifest.created)
    )


def load_checkpoint(
    path: str | Path,
    *,
    into: Mapping[str, Any] | None = None,
    cache: str | Path | None = None,
    cache_size: int | None = None,
) -> dict[str, Any]:
    """Load a checkpoint after proving that its tensors are those that were trained.

    Nothing in it is run. A checkpoint that several ranks wrote is loaded on any number of them;
    each calls this for itself, and no collective is used.

    Args:
        path: a checkpoint's folder; or a run's or an archive's folder, whose newest clean
            checkpoint is then taken, passing over the others aloud. Of a run that was resumed,
            the checkpoints that a later attempt superseded do not count. Nor do those that a
            replay has convicted since (convictions.jsonl). Nor do copies of weights alone, which
            nothing can be resumed from; named, one is loaded: the model and "step".
        into: objects as given to `guard.checkpoint`, by the same names: their state is loaded into
            them. Of distributed tensors only this rank's shards are read. An optimizer that has
            not stepped yet gets the state that was saved.
        cache: a folder on a disk near the devices. Files that it has are read from it, and proven
            as those of the archive are; it is filled with the others. Trouble with it is told in
            the log, and no error.
        cache_size: bytes that the cache holds at most. A checkpoint that is larger goes past it.

    Returns:
        what was given to `guard.checkpoint`, as state dicts, and "step"; tensors on the CPU. With
        `into`, the state dicts of those objects, and the other values.

    Raises:
        CheckpointUnreadable: missing, truncated or not a checkpoint.
        CheckpointMismatch: its tensors differ from the digests recorded at saving, or are not
            those of `into`, of which a part may be loaded by then.
        ArchiveIncomplete: a run's or an archive's folder without a clean checkpoint.
        UsageError: the cache's folder cannot be used, or has no size.
    """
    folder = Path(path)
    if (cache is None) != (cache_size is None):
        raise UsageError("cache and cache_size belong together", next_step="give both, or none")
    if folder.name in (STATE_FILE, METADATA, WEIGHTS_FILE):
        folder = folder.parent
    if not (folder / FILE).is_file() and folder.is_dir():
        folder = _newest_clean(folder)
    manifest = settled(folder, Manifest.read(folder), read_confirmations(folder.parent))
    against = doubts(folder, manifest, read_convictions(folder.parent), attempts_of(folder.parent))
    if manifest.status != "clean" or against:
        _log.warning(
            "SDC Guard: checkpoint of step %d is %s: %s",
            manifest.step,
            "suspect" if manifest.status == "clean" else manifest.status,
            "; ".join([*manifest.reasons, *against]),
        )
    if cache is None or cache_size is None:
        return _loaded(Place(folder), manifest, into)
    return _through_cache(folder, manifest, into, Path(cache), cache_size)


def _through_cache(
    folder: Path, manifest: Manifest, into: Mapping[str, Any] | None, cache: Path, size: int
) -> dict[str, Any]:
    from .cache.cache import Cache
    from .cache.place import CachedPlace

    kept = Cache(cache, size)
    if manifest.bytes > size:
        kept.tell(f"{manifest.bytes:,} bytes do not fit into the cache of {size:,}: {cache}")
        return _loaded(Place(folder), manifest, into)
    with CachedPlace(folder, manifest, kept) as place:
        try:
            return _loaded(place, manifest, into)
        except (CheckpointMismatch, CheckpointUnreadable):
            if not place.weed():  # the checkpoint itself
                raise
    return _loaded(Place(folder), manifest, into)


def _loaded(place: Place, manifest: Manifest, into: Mapping[str, Any] | None) -> dict[str, Any]:
    folder = place.folder
    if manifest.format == SHARDED:
        if into is None:
            return load_whole(folder, manifest, place)
        return load_into(folder, manifest, into, place)
    file = place.file(manifest.file)
    payload = _load_file(file, manifest, folder)
    for name, target in (into or {}).items():
        _load_into(target, payload, name, folder)
    return payload


def _load_file(file: Path, manifest: Manifest, folder: Path) -> dict[str, Any]:
    """What a checkpoint's file holds, compared; `folder` is that of the checkpoint, for errors.

    Of a file whose checksum is the one that was recorded the tensors are compared as they are
    loaded, and no other time: what is looked at is what is used. Any other one is read by records
    first, to say what of it differs.
    """
    sound = ByteCheck()
    if not (manifest.xxh3 and file.is_file() and checksum(file) == manifest.xxh3):
        sound = check_bytes(file.parent, replace(manifest, file=file.name))
    if sound.unread:
        raise CheckpointUnreadable(
            sound.reasons()[0], where=str(folder), next_step="load an older clean checkpoint"
        )
    if sound.sound:
        payload = _load(file, folder / manifest.file)
        sound = compare_tensors(tensors_in(payload), manifest)
    if not sound.sound:
        raise CheckpointMismatch(
            f"the checkpoint's bytes are not those that were saved: {sound.reasons()[0]}",
            where=str(folder),
            next_step="load an older clean checkpoint",
        )
    return payload


def load_payload(folder: Path) -> dict[str, Any]:
    """What a checkpoint's file holds, without comparing it; tensors on the CPU.

    Raises:
        CheckpointUnreadable: missing, truncated or not a checkpoint.
    """
    file = folder / Manifest.read(folder).file
    return _load(file, file)


def _load_into(target: Any, payload: dict[str, Any], name: str, folder: Path) -> None:
    if name not in payload and Manifest.read(folder).format == WEIGHTS:
        raise CheckpointMismatch(
            f"it is a copy of the weights alone, without {name!r}: nothing resumes from it exactly",
            where=str(folder),
            next_step="load the model alone, or a whole checkpoint",
        )
    if name not in payload:
        raise CheckpointMismatch(f"the checkpoint has no {name!r}", where=str(folder))
    if not hasattr(target, "load_state_dict"):
        raise UsageError(
            f"{name} has no load_state_dict()", next_step="take it from what this returns"
        )
    target.load_state_dict(payload[name])


def _load(path: Path, where: Path) -> dict[str, Any]:
    try:
        payload: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # noqa: BLE001 - because torch.load raises errors of every kind
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointUnreadable(
            f"torch.load(weights_only=True) refuses it: {reason}",
            where=str(where),
            next_step="pass only tensors, numbers, text and containers to guard.checkpoint",
        ) from None
    return payload


def _newest_clean(folder: Path) -> Path:
    archive = folder / "archive" if (folder / "archive").is_dir() else folder
    found = checkpoints(archive)
    copies = [one for one in all_folders(archive) if is_copy(one)]
    spans = _lineage(archive.parent)
    live = [item for item in found if _counts(item.manifest, spans)]
    clean = [item for item in live if item.clean]
    if not clean:
        superseded = len(found) - len(live)
        also = f", {superseded} of them of superseded attempts" if superseded else ""
        unread = next(iter(_unread(archive).items()), None)
        also += f"; {unread[0]}: {unread[1]}" if unread else ""
        also += _not_resumed(copies) if copies else ""
        raise ArchiveIncomplete(
            f"no clean checkpoint among {len(found)}{also}",
            where=str(archive),
            next_step="name a checkpoint's folder to load it all the same",
        )
    chosen = clean[-1]
    later = [one for one in copies if step_named(one.name) > chosen.manifest.step]
    if later:
        _log.warning("SDC Guard: passed over %s%s", later[-1].name, _not_resumed(later))
    for item in found[found.index(chosen) + 1 :]:
        _log.warning("SDC Guard: passed over step %d, %s", item.manifest.step, _why(item, live))
    for name, why in _unread(archive).items():
        if step_named(name) >= step_named(chosen.folder.name):
            _log.warning("SDC Guard: passed over %s, %s", name, why)
    return chosen.folder


def _unread(archive: Path) -> dict[str, str]:
    """Folders of checkpoints whose manifest cannot be read, and why."""
    found = {}
    for folder in sorted(archive.glob("step=*")):
        try:
            Manifest.read(folder)
        except CheckpointUnreadable as error:
            found[folder.name] = error.what
    return found


def _not_resumed(copies: list[Path]) -> str:
    """Why copies of weights are not taken, and how one is all the same."""
    return (
        f"; {len(copies)} of weights alone, without the optimizer, are not resumed from: name "
        f"{copies[-1]} to load its model"
    )


def _why(passed: Found, live: list[Found]) -> str:
    if passed not in live:
        return "superseded by a later attempt"
    return "; ".join(passed.doubts) if passed.doubts else passed.manifest.status


def _lineage(run: Path) -> list[Span] | None:
    """Which attempt counts for which steps; None when the folder does not say."""
    try:
        return lineage(RunFile.read(run).attempts)
    except SdcGuardError:
        return None


def _counts(manifest: Manifest, spans: list[Span] | None) -> bool:
    return spans is None or counts(spans, manifest.attempt, manifest.step)
