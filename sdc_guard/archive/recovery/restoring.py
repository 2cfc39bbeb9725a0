"""Copying a checkpoint out of a run, proven on the way, to where a job will start from it."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from ...errors import (
    ArchiveIncomplete,
    CheckpointMismatch,
    CheckpointUnreadable,
    UsageError,
)
from ...store.atomic import fsync_file, publish_text
from ..cache.cache import Cache
from ..manifest import FILE as MANIFEST
from ..manifest import FileEntry, Manifest, Status
from ..sealing.seal_file import publish_seal, seal_of
from .candidates import Candidate
from .choice import Passed
from .copying import Stop, Stopped, copy_proven, stopped_at_end
from .new_folder import check_free, new_folder, unwritten
from .proof import prove_tensors

DAMAGED = (CheckpointMismatch, CheckpointUnreadable)


@dataclass
class Restored:
    """What was restored.

    Attributes:
        taken: the checkpoint.
        path: what to load: the new folder, or the checkpoint of another program in it.
        files, bytes: that were copied.
        cached: bytes of them that came out of the cache.
        tensors: that were compared with their digests.
        passed: those that were not taken, the newest first.
        seconds: by part: "copy" with the hashing, "proof" of the tensors, "sync" what the disk
            takes longer than that, "cache" to fill it.
    """

    taken: Candidate
    path: Path
    files: int = 0
    bytes: int = 0
    cached: int = 0
    tensors: int = 0
    passed: list[Passed] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def restore(
    tried: Iterable[Candidate | Passed],
    to: Path,
    *,
    jobs: int = 4,
    cache: Cache | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Restored:
    """Copy the first checkpoint whose bytes are those that were recorded.

    Args:
        tried: in order, with those that are passed over.
        to: a new folder. It holds the files of a guard's own checkpoint, or the checkpoint of
            another program under its own name, with its seal beside it.
        jobs: threads.
        cache: read from where it has the files, and filled afterwards.
        tell: called with a line for each that is passed over, and for trouble with the cache.

    Raises:
        ArchiveIncomplete: none is left.
        UsageError: something is at `to` already, or it cannot be written. Nothing is left then.
        OSError: what is read fails.
    """
    passed: list[Passed] = []

    def pass_over(one: Passed) -> None:
        passed.append(one)
        tell(one.line())

    try:
        with new_folder(to) as make:
            done = None
            for one in tried:
                if isinstance(one, Passed):
                    pass_over(one)
                    continue
                try:
                    done = _copied(one, make(), jobs, cache)
                    break
                except DAMAGED as error:
                    pass_over(Passed(one, error.what))
            if done is None:
                raise nothing_left(passed)
    except OSError as error:
        if (told := unwritten(to, error)) is None:
            raise
        raise told from error
    done.path, done.passed = to / done.path, passed
    if cache is not None:
        started = time.perf_counter()
        _fill(done, to, cache)
        done.seconds["cache"] = time.perf_counter() - started
    return done


def nothing_left(passed: list[Passed]) -> ArchiveIncomplete:
    """That there is no checkpoint to take."""
    if len(passed) == 1:
        one = passed[0].candidate
        what = f"the checkpoint of step {one.step} cannot be restored, {passed[0].why}"
        return ArchiveIncomplete(what, where=str(one.path))
    return ArchiveIncomplete(
        f"no clean checkpoint among {len(passed)}",
        next_step="name one with --step to look at it all the same",
    )


def dry_run(tried: Iterable[Candidate | Passed], to: Path) -> Restored:
    """What would be taken if all bytes are right; none is read.

    Raises: as `restore`.
    """
    check_free(to)
    passed: list[Passed] = []
    for one in tried:
        if isinstance(one, Passed):
            passed.append(one)
            continue
        files = one.files
        size = sum(file.bytes for file in files)
        return Restored(one, to / _inside(one), len(files), size, passed=passed)
    raise nothing_left(passed)


def _inside(one: Candidate) -> Path:
    """Where a checkpoint lies in the new folder."""
    return Path() if one.seal is None else Path(one.path.name)


def _copied(one: Candidate, folder: Path, jobs: int, cache: Cache | None) -> Restored:
    """A checkpoint's files, its manifest or seal, in a folder that is there; all synced."""
    files = one.files
    size = sum(file.bytes for file in files)
    _check_space(folder, size)
    done = Restored(one, _inside(one), len(files), size)
    place = folder / done.path
    started = time.perf_counter()
    for file in files:
        _place_of(one, place, file).parent.mkdir(parents=True, exist_ok=True)
    done.cached = sum(_each(files, jobs, lambda file, ahead, stop: _file(
        one, file, _place_of(one, place, file), cache, ahead, stop
    )))  # fmt: skip
    done.seconds["copy"] = time.perf_counter() - started
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        started = time.perf_counter()
        syncing = [pool.submit(fsync_file, _place_of(one, place, file)) for file in files]
        done.tensors = prove_tensors(one, place, jobs)  # while the disk writes
        done.seconds["proof"] = time.perf_counter() - started
        started = time.perf_counter()
        for future in syncing:
            future.result()
        done.seconds["sync"] = time.perf_counter() - started
    _describe(one, place)
    return done


def _place_of(one: Candidate, place: Path, file: FileEntry) -> Path:
    return place if one.seal is not None and one.path.is_file() else place / file.name


def _describe(one: Candidate, place: Path) -> None:
    """The manifest or the seal beside the copy; with what is thought of it by now, if that is
    something else, so that a copy of one that was doubted since is not clean."""
    known = one.manifest
    if one.seal is None:
        assert known is not None
        if (as_sealed := Manifest.read(one.path)).status != known.status or one.doubted:
            as_sealed = replace(known, status=_status(one), reasons=one.reasons)
            as_sealed.write(place)
        else:
            publish_text(place / MANIFEST, (one.path / MANIFEST).read_text(encoding="utf-8"))
        return
    if one.seal.guarded is None or not one.doubted:
        publish_text(seal_of(place), seal_of(one.path).read_text(encoding="utf-8"))
        return
    guarded = replace(one.seal.guarded, status=_status(one), reasons=one.reasons)
    publish_seal(place, replace(one.seal, guarded=guarded))


def _status(one: Candidate) -> Status:
    if one.status == "incomplete" or one.status == "gone":
        return "untested"
    return one.status


def _check_space(folder: Path, size: int) -> None:
    free = shutil.disk_usage(folder).free
    if size > free:
        raise UsageError(
            f"{size:,} bytes are needed, and {free:,} are free",
            where=str(folder.parent),
            next_step="make room, or name a folder on another disk",
        )


def _file(
    one: Candidate, file: FileEntry, target: Path, cache: Cache | None, ahead: int, stop: Stop
) -> int:
    """Copy one file; bytes that came out of the cache."""
    held = None if cache is None else cache.hit(file, proven=False)  # the copy proves it
    if held is not None and cache is not None:
        with held:
            try:
                copy_proven(held.path, target, file, ahead=ahead, stop=stop)
                return file.bytes
            except DAMAGED:
                target.unlink(missing_ok=True)
                cache.drop(held, file.name)
    copy_proven(one.file(file.name), target, file, ahead=ahead, stop=stop)
    return 0


def _fill(done: Restored, to: Path, cache: Cache) -> None:
    """Put what was copied into the cache; what goes wrong there is told, and nothing else."""
    if done.bytes > cache.size:
        cache.tell(f"{done.bytes:,} bytes do not fit into the cache of {cache.size:,}")
        return
    for file in done.taken.files:
        source = _place_of(done.taken, done.path, file)
        try:
            held = cache.fetch(file, source, proven=False)
        except DAMAGED as error:
            cache.tell(f"not cached: {error}")
            continue
        if held is not None:
            held.close()


def _each(
    files: Iterable[FileEntry], jobs: int, call: Callable[[FileEntry, int, Stop], int]
) -> list[int]:
    """Call it for each file in threads, the largest first; the first error stops the others."""
    ordered = sorted(files, key=lambda file: -file.bytes)
    whole = sum(file.bytes for file in ordered) or 1
    with ThreadPoolExecutor(max(1, jobs)) as pool, stopped_at_end() as stop:

        def one(file: FileEntry) -> int:
            try:
                stop.check()
                return call(file, max(1, round(jobs * file.bytes / whole)), stop)
            except BaseException:
                stop.event.set()
                raise

        futures = [pool.submit(one, file) for file in ordered]
        errors = [error for future in futures if (error := future.exception()) is not None]
        first = next((error for error in errors if not isinstance(error, Stopped)), None)
        if first is not None:
            raise first
        return [future.result() for future in futures]
