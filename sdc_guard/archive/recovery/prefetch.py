"""Bringing checkpoints to a cache before they are needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from ...errors import UsageError
from ..cache.cache import Cache
from ..manifest import FileEntry
from .candidates import Candidate
from .choice import Passed
from .copying import stopped_at_end
from .restoring import DAMAGED, nothing_left


@dataclass(frozen=True)
class Cached:
    """A checkpoint all of whose files are in the cache.

    Attributes:
        candidate: the checkpoint.
        bytes: of its files.
        fetched: bytes that were not there before.
    """

    candidate: Candidate
    bytes: int
    fetched: int


@dataclass
class Prefetched:
    """What was brought.

    Attributes:
        cached: the newest first.
        passed: what was passed over.
    """

    cached: list[Cached] = field(default_factory=list)
    passed: list[Passed] = field(default_factory=list)


def prefetch(
    tried: Iterable[Candidate | Passed],
    cache: Cache,
    *,
    count: int = 1,
    jobs: int = 4,
    tell: Callable[[str], None] = lambda _: None,
) -> Prefetched:
    """Bring the newest clean checkpoints to the cache, as many as are asked for and fit together.

    Args:
        tried: newest first, with those that are passed over.
        cache: where to.
        count: of checkpoints.
        jobs: files that are read at once.
        tell: called with a line for each that is passed over.

    Raises:
        ArchiveIncomplete: none can be taken.
        UsageError: the newest is larger than the cache, or does not get in.
    """
    done, used = Prefetched(), 0

    def pass_over(one: Passed) -> None:
        done.passed.append(one)
        tell(one.line())

    for one in tried:
        if isinstance(one, Passed):
            pass_over(one)
            continue
        files = one.files
        size = sum(file.bytes for file in files)
        if used + size > cache.size:
            if done.cached:
                break
            raise UsageError(
                f"the checkpoint of step {one.step} has {size:,} bytes, more than the cache's "
                f"{cache.size:,}",
                where=str(one.path),
                next_step="give a larger --cache-size",
            )
        try:
            fetched = _brought(one, files, cache, jobs)
        except DAMAGED as error:
            pass_over(Passed(one, error.what))
            continue
        used += size
        done.cached.append(Cached(one, size, fetched))
        if len(done.cached) == count:
            break
    if not done.cached:
        raise nothing_left(done.passed)
    _touch(done, cache)
    return done


def _brought(one: Candidate, files: tuple[FileEntry, ...], cache: Cache, jobs: int) -> int:
    """Bring its files, each proven; how many bytes were not there."""
    whole = sum(file.bytes for file in files) or 1

    def bring(file: FileEntry) -> int:
        held = cache.hit(file)
        fetched = 0
        if held is None:
            ahead = max(1, round(jobs * file.bytes / whole))
            held = cache.fetch(file, one.file(file.name), proven=False, ahead=ahead, stop=stop)
            fetched = file.bytes
        if held is None:
            raise _uncached(one, file)
        held.close()
        return fetched

    with ThreadPoolExecutor(max(1, jobs)) as pool, stopped_at_end() as stop:
        return sum(pool.map(bring, sorted(files, key=lambda file: -file.bytes)))


def _uncached(one: Candidate, file: FileEntry) -> UsageError:
    """That a file does not get into the cache."""
    why, remedy = "it has no checksum", "restore copies it from the archive"
    if file.xxh3:
        why = "there is no room that is not in use, or it cannot be written"
        remedy = "make room there, or name another folder"
    what = f"{file.name} cannot be cached: {why}"
    return UsageError(what, where=str(one.path), next_step=remedy)


def _touch(done: Prefetched, cache: Cache) -> None:
    """Make the newest the one that was used last: older ones go before it."""
    for one in reversed(done.cached):
        for file in one.candidate.files:
            held = cache.hit(file, proven=False)
            if held is not None:
                held.close()
