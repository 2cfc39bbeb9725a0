"""convictions.jsonl: what a replay proved of a run's checkpoints after they were sealed.

A manifest says what was known when it was sealed, and stays as it is. What was proven later stands
beside, one JSON object a line; to take one back, delete its line.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ..errors import SdcGuardError
from ..store.lineage import counts, lineage
from ..store.run_file import Attempt, RunFile
from .folders import CONVICTIONS
from .line_file import read_lines
from .manifest import Manifest

FILE: Final = CONVICTIONS


@dataclass(frozen=True)
class Conviction:
    """A step of a run that was proven to have gone wrong, or one stored checkpoint.

    Attributes:
        attempt: the attempt that ran the step, or wrote the checkpoint.
        last_clean: the last step known to have left a right state; None where none is.
        first_corrupt: the first step proven to have left a wrong one.
        reason: why, in a line.
        checkpoint: name of the only folder that it is about, where the stored bytes alone are
            wrong; else None.
        session: the session that proved it.
    """

    attempt: int
    last_clean: int | None
    first_corrupt: int
    reason: str
    checkpoint: str | None = None
    session: str = ""

    def covers(self, folder: Path, manifest: Manifest, attempts: Sequence[Attempt]) -> bool:
        """Whether a checkpoint holds, or may hold, what went wrong.

        It does from the step after the last clean one on, in the attempt itself and in those that
        went on from it; not in one that began again from before.
        """
        if self.checkpoint is not None:
            # once it is deleted a later attempt may save another one under its name
            return folder.name == self.checkpoint and manifest.attempt == self.attempt
        first_doubted = self.first_corrupt if self.last_clean is None else self.last_clean + 1
        if manifest.trace_step < first_doubted:
            return False
        spans = lineage(attempts, manifest.attempt)
        if not any(number == manifest.attempt for number, _, _ in spans):
            return manifest.attempt == self.attempt
        return counts(spans, self.attempt, first_doubted)

    def text(self) -> str:
        """Why a checkpoint that it covers is doubted."""
        where = f" (bisect/{self.session})" if self.session else ""
        if self.checkpoint is not None:
            return f"convicted later: {self.reason}{where}"
        return f"a replay proved step {self.first_corrupt} wrong: {self.reason}{where}"


def read_convictions(archive: Path) -> list[Conviction]:
    """Those of an archive folder, oldest first; damaged lines are passed over aloud."""
    return read_lines(archive / FILE, _parse)


def add_conviction(archive: Path, conviction: Conviction) -> bool:
    """Append one, unless the same stands there; whether it was added.

    Raises:
        OSError: the archive cannot be written.
    """
    with (archive / FILE).open("ab+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        content = file.read()
        for known in read_convictions(archive):
            if _about(known) == _about(conviction):
                return False
        torn = b"\n" if content and not content.endswith(b"\n") else b""
        file.write(torn + json.dumps(asdict(conviction)).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())
    return True


def doubts(
    folder: Path,
    manifest: Manifest,
    convictions: Iterable[Conviction],
    attempts: Sequence[Attempt],
) -> list[str]:
    """Why a checkpoint is doubted since it was sealed; empty if it is not."""
    return [one.text() for one in convictions if one.covers(folder, manifest, attempts)]


def attempts_of(archive: Path) -> tuple[Attempt, ...]:
    """Of the run that an archive folder lies in; none where it lies in no run."""
    try:
        return RunFile.read(archive.parent).attempts
    except SdcGuardError:
        return ()


def _about(one: Conviction) -> tuple[Any, ...]:
    return one.attempt, one.last_clean, one.first_corrupt, one.checkpoint


def _parse(content: dict[str, Any]) -> Conviction:
    numbers = (content["attempt"], content["first_corrupt"])
    optional = content.get("last_clean")
    texts = (content["reason"], content.get("session", ""))
    checkpoint = content.get("checkpoint")
    if not all(type(number) is int for number in numbers):
        raise TypeError("a number that is none")
    if not isinstance(optional, int | None) or not isinstance(checkpoint, str | None):
        raise TypeError("a step or a name that is none")
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a text that is none")
    return Conviction(numbers[0], optional, numbers[1], texts[0], checkpoint, texts[1])
