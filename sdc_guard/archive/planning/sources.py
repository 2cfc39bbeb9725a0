"""What can be measured of a run or a checkpoint, for a plan: sizes, times of steps, latencies."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Final

from ...errors import ArchiveIncomplete, UsageError
from .inputs import Value

# how frameworks name the checkpoints of an archive: step=000500, checkpoint-500, iter_0000500, ...
_NAMED: Final = re.compile(
    r"(?:step|global_step|checkpoint|iter|ckpt|epoch)\D{0,6}(\d+)(?:\.\w+)?", re.IGNORECASE
)
# files that a folder has which is one checkpoint, whatever its other files are called
_WHOLE: Final = ("manifest.json", ".metadata", "trainer_state.json", "config.json")
_STEP_TIME: Final = "SELECT median(step_seconds) FROM steps WHERE step_seconds > 0"
# when each step ended on the first rank that had it; the row by which an incident was first told
_INCIDENTS: Final = """
    WITH ended AS (
        SELECT attempt, step, min(time) AS time FROM every.steps WHERE time IS NOT NULL GROUP BY ALL
    ), found AS (
        SELECT attempt, rank, incident, min(step) AS told, min(opened) AS opened,
            arg_max(evidence, step) AS evidence
        FROM every.incidents GROUP BY ALL
    )
    SELECT found.attempt, opened, evidence, told.time FROM found
    JOIN ended AS told ON told.attempt = found.attempt AND told.step = found.told
"""
_ENDED: Final = "SELECT min(time) FROM every.steps WHERE attempt = $attempt AND step = $step"


def measured_of(path: Path, *, size: bool = True) -> dict[str, Value]:
    """What a run, an archive or a checkpoint tells: the size, and of a run the time of a step.

    Args:
        path: of it.
        size: False where the size is known and need not be looked for.

    Raises:
        UsageError, ArchiveIncomplete: nothing there, or no checkpoint in it.
    """
    is_run = (path / "run.json").is_file()
    found = {}
    if size:
        newest = _newest_of_run(path) if is_run else newest_checkpoint(path)
        found["size"] = Value(float(_bytes(newest)), "measured", f"measured of {newest}")
    seconds = _step_seconds(path) if is_run else None
    if seconds is not None:
        found["step_time"] = Value(seconds, "measured", "median of the run's steps")
    return found


def _newest_of_run(run: Path) -> Path:
    """Of a run's own archive, or of those that its guard sealed elsewhere.

    Raises:
        ArchiveIncomplete: neither has one.
    """
    from ..sealing.listed import listed_in

    archive = run / "archive"
    if any(archive.glob("*/manifest.json")):
        return newest_checkpoint(archive)
    sealed = [one.path for one in listed_in(run) if one.path.exists()]
    if not sealed:
        raise ArchiveIncomplete("no checkpoint", where=str(run), next_step="give --size")
    return sealed[-1]


def newest_checkpoint(path: Path) -> Path:
    """The checkpoint itself, or of an archive the one with the highest number.

    Raises:
        UsageError: nothing there.
        ArchiveIncomplete: an archive without a checkpoint.
    """
    if path.is_file():
        return path
    if not path.is_dir():
        raise UsageError("no checkpoint and no folder there", where=str(path))
    entries = [entry for entry in path.iterdir() if not entry.name.startswith(".")]
    sealed = [entry for entry in entries if (entry / "manifest.json").is_file()]
    if any((path / name).is_file() for name in _WHOLE):
        return path
    numbered = [
        (int(match[1]), entry.name, entry)
        for entry in sealed or entries
        if (match := _NAMED.fullmatch(entry.name))
    ]
    if numbered:
        return max(numbered)[2]
    if not any(entry.is_file() for entry in entries):
        raise ArchiveIncomplete("no checkpoint", where=str(path), next_step="give --size")
    return path


def _bytes(path: Path) -> int:
    if path.is_file():
        size = path.stat().st_size
    else:
        size = sum(
            (Path(folder) / name).lstat().st_size
            for folder, _, names in os.walk(path)
            for name in names
            if name != "manifest.json"
        )
    if size == 0:
        raise ArchiveIncomplete("an empty checkpoint", where=str(path), next_step="give --size")
    return size


def _step_seconds(run: Path) -> float | None:
    from ...store.opening import open_run

    with open_run(run) as reader:
        found: float | None = reader.rows(_STEP_TIME)[0][0]
    return found


def latencies_of(run: Path) -> list[float]:
    """How long corruption went unseen in a run: of each proven incident, in seconds.

    From the end of the step that went wrong to the end of the step at which it was told. The
    former is the one that a replay convicted, where one was; else the first that an alert is
    about, and then the corruption may be older. No less than the time of a step.

    Raises:
        UsageError: no proven incident whose times are known.
        RunNotFound, RunFormatError: no run.
    """
    from ...store.opening import open_run
    from ..convictions import read_convictions

    convicted = [one for one in read_convictions(run / "archive") if one.checkpoint is None]
    found = []
    with open_run(run) as reader:
        least = reader.rows(_STEP_TIME)[0][0] or 1e-3
        for attempt, opened, evidence, told in reader.rows(_INCIDENTS):
            if not json.loads(evidence).get("proven"):
                continue
            earlier = [
                one.first_corrupt
                for one in convicted
                if one.attempt == attempt and one.first_corrupt <= opened
            ]
            step = max(earlier, default=opened)
            began = reader.rows(_ENDED, {"attempt": attempt, "step": step})[0][0]
            if began is not None:
                found.append(max(told - began, least))
    if not found:
        raise UsageError(
            "the trace has no proven incident to take a latency from",
            where=str(run),
            next_step="give --latency, such as 1h..100d",
        )
    return found
