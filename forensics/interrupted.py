"""What an interrupted replay left, and how much of it can be used again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sdc_guard.errors import SdcGuardError
from sdc_guard.signals.capture import CaptureRequest
from sdc_guard.store.atomic import publish_text
from sdc_guard.store.reader import RunReader

from .checkpoint import Checkpoint
from .readers import guard_archive

FILE: Final = "replay.json"

# steps that each of so many ranks recorded to the end
_STEPS = """
    SELECT step FROM (
        SELECT step, rank FROM steps SEMI JOIN
            (SELECT DISTINCT step, rank FROM digests WHERE phase = 'after') USING (step, rank)
    ) GROUP BY step HAVING count(DISTINCT rank) >= $ranks
"""


@dataclass(frozen=True)
class Resumption:
    """What can be used again.

    Attributes:
        whole: the replay had ended.
        resume: else the checkpoint, of those that the replay wrote itself, to go on from.
    """

    whole: bool = False
    resume: Path | None = None


def begin(target: Path, inputs: dict[str, Any]) -> None:
    """Note what a replay is made from, before it starts."""
    publish_text(target / FILE, json.dumps({"ended": False, "inputs": inputs}, indent=1) + "\n")


def finish(target: Path, inputs: dict[str, Any]) -> None:
    """Note that a replay has ended."""
    publish_text(target / FILE, json.dumps({"ended": True, "inputs": inputs}, indent=1) + "\n")


def left_of(
    target: Path,
    inputs: dict[str, Any],
    start: Checkpoint,
    until: int,
    capture: CaptureRequest | None,
) -> Resumption:
    """What can be used again of what lies in a replay's folder.

    Nothing if it was made from other inputs. Of one that was interrupted, the steps up to the
    newest checkpoint that its own guard sealed as clean, if each of them was recorded.

    Args:
        target: the folder.
        inputs: what the replay would be made from now.
        start, until, capture: as for the replay.
    """
    try:
        noted = json.loads((target / FILE).read_text(encoding="utf-8"))
        if noted["inputs"] != inputs:
            return Resumption()
        if noted["ended"]:
            return Resumption(whole=True)
        return Resumption(resume=_furthest(target, start, until, capture))
    except (OSError, ValueError, KeyError, TypeError, SdcGuardError):
        return Resumption()  # it begins anew: nothing is lost but time


def _furthest(
    target: Path, start: Checkpoint, until: int, capture: CaptureRequest | None
) -> Path | None:
    end = until if capture is None else min(until, capture.step)
    with RunReader(target) as reader:
        ranks = {"ranks": reader.run_file.world_size}
        recorded = {row[0] for row in reader.rows(_STEPS, ranks)}
    own = [
        one
        for one in guard_archive.find(target)
        if one.readable and one.status == "clean" and start.step < one.step < end
    ]
    for one in sorted(own, key=lambda one: one.step, reverse=True):
        if recorded.issuperset(range(start.step + 1, one.step + 1)):
            return one.path
    return None
