"""Having a step run again by neighbouring ranks, through files in the run's folder.

No collective is used: a rank without a guard, or one that died, costs the others a wait with a
time limit and nothing else, and after one wait in vain a rank asks nobody any more.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...ranks import Ranks
from ...store.atomic import publish
from .package import Package
from .step_replay import Result, in_words

MOST_NEIGHBOURS = 2  # with this rank they are three, of which two can outvote one
PATIENCE = 30.0  # seconds that a neighbour may be late, besides the time of its replays
_POLL = 0.02

Answerer = Callable[[Package], "list[Result]"]


@dataclass(frozen=True)
class Answer:
    """What a neighbour says of this rank's step: results, or why there are none; "" for silence."""

    place: str
    results: tuple[Result, ...]
    reason: str


class Neighbours:
    """The ranks that come after this one, which answer it, and those before, which ask it.

    Args:
        run: the run's folder, on a file system that all ranks share.
        attempt: of the run.
        ranks: this process among them.
    """

    def __init__(self, run: Path, attempt: int, ranks: Ranks) -> None:
        self._folder = run / "audit"
        self._attempt, self._rank, world = attempt, ranks.rank, ranks.world_size
        count = min(MOST_NEIGHBOURS, world - 1)
        self._asked = [(self._rank + place) % world for place in range(1, count + 1)]
        self._asking = [(self._rank - place) % world for place in range(1, count + 1)]
        self._left: Path | None = None
        self.silent = ""  # who did not answer in time
        for left in self._folder.glob(f"*/from-{self._rank}.pt"):
            left.unlink(missing_ok=True)

    def exchange(
        self, step: int, package: Package | None, answer: Answerer, seconds: float, place: str
    ) -> list[Answer]:
        """Ask the neighbours about this rank's step, and answer those that ask.

        Args:
            step: its number, the same on all ranks.
            package: the step, or None if it cannot be run again.
            answer: runs a neighbour's step; whatever it raises is its reason.
            seconds: that a replay takes here.
            place: name of this rank's device.
        """
        self.tidy()
        folder = self._folder / f"attempt={self._attempt:03d}-step={step:09d}"
        folder.mkdir(parents=True, exist_ok=True)
        mine = folder / f"from-{self._rank}.pt"
        publish(mine, lambda path: torch.save(package, path))
        patience = PATIENCE + 20 * seconds
        for rank in self._asking:
            self._answer(folder, rank, answer, patience, place)
        found = [self._answer_of(folder, rank, patience) for rank in self._asked]
        mine.unlink(missing_ok=True)
        self._left = folder
        return found

    def tidy(self) -> None:
        """Remove the folder of the step before, which all ranks have left by now."""
        if self._left is not None:
            with contextlib.suppress(OSError):  # somebody was late, or another rank did it
                self._left.rmdir()

    def _answer(
        self, folder: Path, rank: int, answer: Answerer, patience: float, place: str
    ) -> None:
        asked = folder / f"from-{rank}.pt"
        if not self._wait(asked, rank, patience):
            return
        said: dict[str, Any] = {"place": place, "results": [], "reason": ""}
        try:
            package = torch.load(asked, map_location=_here, weights_only=True)
            results = [] if package is None else answer(package)
            said["results"] = [[each.rows.hex(), list(each.present)] for each in results]
        except Exception as error:  # noqa: BLE001 - because a batch or a model may refuse in any way
            said["reason"] = in_words(error)
        text = json.dumps(said)
        target = folder / f"answer-{rank}-by-{self._rank}.json"
        publish(target, lambda path: path.write_text(text, encoding="utf-8"))

    def _answer_of(self, folder: Path, rank: int, patience: float) -> Answer:
        path = folder / f"answer-{self._rank}-by-{rank}.json"
        if not self._wait(path, rank, patience):
            return Answer(f"rank {rank}", (), "")
        said = json.loads(path.read_text(encoding="utf-8"))
        path.unlink(missing_ok=True)
        results = tuple(
            Result(bytes.fromhex(rows), tuple(present)) for rows, present in said["results"]
        )
        return Answer(f"rank {rank} ({said['place']})", results, said["reason"])

    def _wait(self, path: Path, rank: int, patience: float) -> bool:
        if self.silent:
            return path.exists()
        until = time.monotonic() + patience
        while not path.exists():
            if time.monotonic() > until:
                self.silent = f"rank {rank}"
                return False
            time.sleep(_POLL)
        return True


def _here(storage: Any, location: str) -> Any:
    """A neighbour's device is this rank's device of the same kind."""
    kind = location.partition(":")[0]
    if kind == "cpu":
        return storage
    device = torch.get_device_module(kind).current_device()
    return storage.cuda(device) if kind == "cuda" else storage
