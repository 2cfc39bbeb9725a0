"""The background part of a sharded save: write, read back, acknowledge; rank 0 commits.

Ranks wait for files of each other, with a time limit, and for nothing else: a rank that died is
noticed by its silence, and one that hangs blocks none for longer than the limit. Whatever goes
wrong leaves a folder whose name starts with a dot.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ...errors import SdcGuardError
from ..manifest import Manifest
from ..other_step import Around
from ..save import delete_abandoned
from .ack import WRITES, Ack, ack_name, plan_name, publish_writes, read_writes
from .assign import Assignment, assigned
from .beats import EVERY, SILENCE, Beating, Listening
from .commit import Commit, commit
from .files import file_entries, write_pieces
from .flat import Path as Way
from .meeting import Meeting, NotSaved, listed
from .pieces import At, Piece
from .proof import not_finite, reasons_of, with_own_digests
from .staging import Staged

_SOON, _SELDOM = 0.005, 0.25  # seconds between two looks for a file
_FAILED, _OUTCOME = "failed", "outcome"
LIMIT: Final = 1800.0  # seconds that writing may last


@dataclass(frozen=True)
class Part:
    """What one rank is to write.

    Attributes:
        archive: the run's archive.
        step, trace_step, attempt: as in `Manifest`.
        save: the name of the folder until it is committed.
        number: of the ranks' meeting.
        pieces, staged: what it holds, and the copy that is written.
        trained: the pieces that must be finite.
        paths, placements: by name, as in `Ack`.
        doubts: why the checkpoint is not clean, known beforehand.
        layout, environment: as in `Manifest`.
    """

    archive: Path
    step: int
    trace_step: int
    attempt: int
    save: str
    number: int
    pieces: Mapping[At, Piece]
    staged: Staged
    trained: tuple[At, ...]
    paths: Mapping[str, Way]
    placements: Mapping[str, str]
    doubts: tuple[str, ...]
    layout: Mapping[str, Any]
    environment: Callable[[], str]

    @property
    def folder(self) -> Path:
        """Where it is written."""
        return self.archive / self.save


@dataclass(frozen=True)
class Outcome:
    """How a save ended: the checkpoint's folder, or why there is none.

    Attributes:
        manifest: on rank 0 alone.
    """

    folder: Path | None
    manifest: Manifest | None = None
    error: str = ""


def write_part(
    part: Part,
    meeting: Meeting,
    around: Around,
    limit: float = LIMIT,
    *,
    silence: float = SILENCE,
    every: float = EVERY,
) -> Outcome:
    """Write this rank's part; rank 0 commits the whole. Raises nothing.

    Args:
        around: see `proof.reasons_of`.
        limit: seconds after which what is not done is given up.
        silence: seconds without a sign of life after which a rank is given up.
        every: seconds from one sign of life to the next.
    """
    one = _Rank(part, meeting, around, time.monotonic() + limit, silence, every)
    try:
        with Beating(meeting, part.number, every):
            return one.write()
    except Exception as error:  # noqa: BLE001 - because the other ranks wait to hear of it
        text = error.what if isinstance(error, SdcGuardError) else _named(error)
        text = " ".join(text.split())
        one.give_up(text)
        return Outcome(None, error=text)


def _named(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


class _Rank:
    """One rank's part of one save."""

    def __init__(
        self,
        part: Part,
        meeting: Meeting,
        around: Around,
        end: float,
        silence: float,
        every: float,
    ) -> None:
        self._part, self._meeting, self._around, self._end = part, meeting, around, end
        self._listening = Listening(meeting, part.number, silence, every)
        self._rank, self._ranks = meeting.rank, range(meeting.world_size)
        self._is_first = self._rank == 0

    def write(self) -> Outcome:
        part = self._part
        if self._is_first:
            part.archive.mkdir(parents=True, exist_ok=True)
            delete_abandoned(part.archive, time.time())
            part.folder.mkdir()
        else:
            self._wait_for([part.folder], "rank 0 made no folder for it")
        pieces = tuple(with_own_digests(part.pieces, part.staged).values())
        said = Ack(
            self._rank, part.step, part.attempt, part.save, paths=part.paths,
            placements=part.placements,
        )  # fmt: skip
        replace(said, pieces=pieces).publish(part.folder / plan_name(self._rank))
        assignment = self._assign() if self._is_first else None
        mine = self._mine(pieces)
        written = write_pieces(part.folder, self._rank, mine, part.staged)
        told = reasons_of(part.folder, written, part.staged, part.trace_step, self._around)
        reasons = [*part.doubts, *told]
        reasons += not_finite(part.pieces, part.staged, part.trained)
        names = list(dict.fromkeys(one.file for one in written))
        files = tuple(file_entries(part.folder, names))
        done = replace(said, written=tuple(written), files=files, reasons=tuple(reasons))
        done.publish(part.folder / ack_name(self._rank))
        return self._told() if assignment is None else self._commit(assignment)

    def give_up(self, reason: str) -> None:
        """Tell the others that this rank cannot go on."""
        if not self._is_first:
            self._meeting.tell(self._part.number, _FAILED, f"rank {self._rank}: {reason}")
            return
        self._tell_outcome({"error": reason})
        shutil.rmtree(self._part.folder, ignore_errors=True)

    def _assign(self) -> Assignment:
        plans = self._all(plan_name)
        found = assigned({plan.rank: plan.pieces for plan in plans})
        publish_writes(self._part.folder / WRITES, found.places)
        return found

    def _mine(self, pieces: tuple[Piece, ...]) -> list[Piece]:
        path = self._part.folder / WRITES
        if not self._is_first:
            self._wait_for([path], "rank 0 did not say what to write")
        return [pieces[place] for place in read_writes(path, self._rank)]

    def _commit(self, assignment: Assignment) -> Outcome:
        acks = self._all(ack_name)
        part = self._part
        told = Commit(
            part.archive, part.folder, part.step, part.trace_step, part.attempt,
            assignment, part.layout, part.environment(),
        )  # fmt: skip
        folder, manifest = commit(told, acks)
        self._tell_outcome({"folder": folder.name})
        return Outcome(folder, manifest)

    def _all(self, name: Callable[[int], str]) -> list[Ack]:
        """What all ranks published under their names."""
        paths = [self._part.folder / name(rank) for rank in self._ranks]
        self._wait_for(paths, "")
        found = [Ack.read(path) for path in paths]
        for rank, ack in enumerate(found):
            told = (ack.rank, ack.step, ack.attempt, ack.save)
            if told != (rank, self._part.step, self._part.attempt, self._part.save):
                raise NotSaved(f"rank {rank} wrote step {ack.step} of attempt {ack.attempt}")
        return found

    def _told(self) -> Outcome:
        """What rank 0 made of it."""
        pause = _SOON
        while time.monotonic() < self._end:
            if told := self._meeting.heard(self._part.number, _OUTCOME):
                return _outcome(self._part.archive, told)
            self._listening.check([0])
            time.sleep(pause)
            pause = min(2 * pause, _SELDOM)
        return Outcome(None, error="rank 0 did not commit it in time")

    def _tell_outcome(self, outcome: Mapping[str, str]) -> None:
        self._meeting.tell(self._part.number, _OUTCOME, json.dumps(dict(outcome)))

    def _wait_for(self, paths: list[Path], otherwise: str) -> None:
        """Wait until these files are there.

        Args:
            otherwise: what to say if they are not in time; "" to name their ranks.

        Raises:
            NotSaved: they are not, another rank said that it cannot go on, or is silent.
        """
        pause, missing = _SOON, paths
        while missing := [path for path in missing if not path.exists()]:
            ranks = [0] if otherwise else [paths.index(path) for path in missing]
            if time.monotonic() > self._end:
                did = f"{listed(ranks)} did not write {'their' if len(ranks) > 1 else 'its'} part"
                raise NotSaved(otherwise or f"{did} in time: dead, stuck, or a slow disk")
            self._hear()
            self._listening.check(ranks)
            time.sleep(pause)
            pause = min(2 * pause, _SELDOM)

    def _hear(self) -> None:
        name = _FAILED if self._is_first else _OUTCOME
        told = self._meeting.heard(self._part.number, name)
        if told is not None:
            raise NotSaved(told if self._is_first else json.loads(told).get("error", told))


def _outcome(archive: Path, told: str) -> Outcome:
    said = json.loads(told)
    if "folder" in said:
        return Outcome(archive / said["folder"])
    return Outcome(None, error=str(said.get("error")))
