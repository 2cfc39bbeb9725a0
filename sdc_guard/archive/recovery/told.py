"""What a restore or a prefetch did, in lines and as an object. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..planning.units import bytes_text, time_text
from .candidates import ALONE, SUPERSEDED, Candidate
from .choice import Passed
from .prefetch import Prefetched
from .restoring import Restored


def warning(one: Candidate) -> str:
    """What to say loudly of one that was asked for though it is not clean; "" if it is."""
    if one.status != "clean":
        return (
            f"WARNING: the checkpoint of step {one.step} is NOT CLEAN, it is {one.why}. A training "
            "that starts from it may start from wrong numbers"
        )
    if one.superseded:
        return f"step {one.step} is {SUPERSEDED}"
    return f"step {one.step} is {ALONE}" if one.copy else ""


def restored_lines(done: Restored, *, dry_run: bool) -> list[str]:
    """Of a restore, those that were passed over aside."""
    one = done.taken
    what = f"step {one.step}, {one.why or 'clean'}: {done.path}"
    size = f"{done.files:,} {'file' if done.files == 1 else 'files'}, {bytes_text(done.bytes)}"
    if dry_run:
        return [f"would restore {what}", f"from {one.path}: {size}; no byte of it was compared"]
    lines = [f"restored {what}", f"from {one.path}: {size}, {done.tensors:,} tensors compared"]
    if done.cached:
        lines[-1] += f"; {bytes_text(done.cached)} from the cache"
    lines.append(", ".join(f"{part} {time_text(spent)}" for part, spent in done.seconds.items()))
    if one.seal is None:
        lines.append(f"load it with load_checkpoint({str(done.path)!r})")
    return lines


def object_of(done: Restored, to: Path, *, dry_run: bool) -> dict[str, Any]:
    """Of a restore."""
    return {
        "checkpoint": _checkpoint(done.taken),
        "to": str(to),
        "load": str(done.path),
        "dry_run": dry_run,
        "files": done.files,
        "bytes": done.bytes,
        "bytes_from_cache": done.cached,
        "tensors": done.tensors,
        "seconds": done.seconds,
        "passed_over": [_passed(one) for one in done.passed],
    }


def prefetched_lines(done: Prefetched, used: int, size: int) -> list[str]:
    """Of a prefetch."""
    lines = []
    for one in done.cached:
        new = f"{bytes_text(one.fetched)} read" if one.fetched else "there already"
        lines.append(f"cached step {one.candidate.step}: {bytes_text(one.bytes)}, {new}")
    return [*lines, f"the cache holds {bytes_text(used)} of {bytes_text(size)}"]


def object_of_prefetch(done: Prefetched, used: int, size: int) -> dict[str, Any]:
    """Of a prefetch."""
    return {
        "cached": [
            _checkpoint(one.candidate) | {"bytes": one.bytes, "bytes_read": one.fetched}
            for one in done.cached
        ],
        "cache_bytes": used,
        "cache_size": size,
        "passed_over": [_passed(one) for one in done.passed],
    }


def _checkpoint(one: Candidate) -> dict[str, Any]:
    return {
        "path": str(one.path), "step": one.step, "attempt": one.attempt, "status": one.status,
        "reasons": list(one.reasons), "format": one.format, "superseded": one.superseded,
    }  # fmt: skip


def _passed(one: Passed) -> dict[str, Any]:
    return {"path": str(one.candidate.path), "step": one.candidate.step, "why": one.why}
