"""The ranks of a run: one attempt for all of them, and one number for each layer.

They agree through the key-value store of the process group and not by a collective. A rank that
makes no guard, or dies before it does, then leaves the others' collectives in order, and rank 0
waits for nobody. Only the policies that change what a step does need a collective, one a step:
a step left out on one rank alone would set the replicas apart for good.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from .errors import UsageError
from .store.run_file import Layer, RunFile

_ERROR = b"error: "
_made: dict[str, int] = {}  # guards that this process made, by folder


class Ranks:
    """This process among the ranks of a run.

    Args:
        run: the run's folder, given alike on every rank.

    Attributes:
        rank: of this process.
        world_size: number of ranks.
    """

    def __init__(self, run: Path) -> None:
        self._run = run
        self._store: Any = None
        self.rank, self.world_size = _from_environment()
        if dist.is_available() and dist.is_initialized():
            self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
            if self.world_size > 1:
                self._store = dist.distributed_c10d._get_default_store()
        _made[str(run)] = _made.get(str(run), 0) + 1
        self._key = f"sdc_guard/{run}/{_made[str(run)]}"

    def from_rank_0(self, start: Callable[[], RunFile]) -> RunFile:
        """What `start` makes on rank 0, which alone calls it.

        Raises:
            UsageError: on the other ranks, if it raised there, or rank 0 made no guard within
                the time that the process group gives a collective.
        """
        if self.rank == 0:
            return self._started(start)
        if self._store is None:
            raise UsageError(
                "this is one of several ranks, and torch.distributed is not initialised",
                next_step="call init_process_group before making the Guard",
            )
        try:
            told = self._store.get(self._key)
        except RuntimeError as error:
            raise UsageError(
                f"rank {self.rank} waited in vain for rank 0 to start the run "
                f"({str(error).splitlines()[0]})",
                where=str(self._run),
                next_step="make the Guard on rank 0 too, with the same folder",
            ) from None
        if told.startswith(_ERROR):
            what = told.removeprefix(_ERROR).decode()
            raise UsageError(f"rank 0 could not start the run: {what}")
        return RunFile.of_text(told)

    def add_layers(
        self, now: RunFile, layers: list[Layer], buffers: Sequence[Layer] = ()
    ) -> RunFile:
        """The run with layers that only this rank holds, as in a pipeline; in run.json too."""
        while True:
            known = {layer.name for layer in now.layers}
            wider = now.with_layers([layer for layer in layers if layer.name not in known], buffers)
            if wider == now:
                return now
            if self._swap(now, wider):
                self._write_newest(wider)
                return wider
            now = self.newest()

    def meet(self, policy: str, *, wait: bool) -> None:
        """Tell this rank's policy and, if `wait`, wait until all ranks have the same.

        Raises:
            UsageError: a rank has another one, or made no guard within the time that the process
                group gives a collective.
        """
        if self._store is None:
            return
        keys = [f"{self._key}/policy/{rank}" for rank in range(self.world_size)]
        self._store.set(keys[self.rank], policy)
        if not wait:
            return
        try:
            others = [self._store.get(key).decode() for key in keys]
        except RuntimeError as error:
            raise UsageError(
                f"rank {self.rank} waited in vain for the guards of all ranks "
                f"({str(error).splitlines()[0]})",
                next_step=f"the policy {policy} needs a Guard on every rank",
            ) from None
        if set(others) != {policy}:
            raise UsageError(
                f"the ranks have different policies: {', '.join(sorted(set(others)))}",
                next_step="give every rank's Guard the same policy",
            )

    def without_a_guard(self, patience: float) -> list[int]:
        """The ranks that do not make a guard in time; no collective.

        Args:
            patience: seconds to wait for one that has not made its own yet.
        """
        if self._store is None:
            return []
        client, end = self.client(), time.monotonic() + patience
        found = []
        for rank in range(self.world_size):
            keys = [f"{self._key}/policy/{rank}"]
            left = max(end - time.monotonic(), 0.01)
            with contextlib.suppress(RuntimeError):  # what a wait that ends in vain raises
                client.wait(keys, timedelta(seconds=left))
            if not client.check(keys):
                found.append(rank)
        return found

    def alerting(self, mine: bool) -> int | None:
        """The first rank that has an alert at this step, if any has; a collective.

        Args:
            mine: whether this rank has.
        """
        if self._store is None:
            return self.rank if mine else None
        theirs: list[Any] = [None] * self.world_size
        dist.all_gather_object(theirs, mine)
        return theirs.index(True) if True in theirs else None

    @property
    def connected(self) -> bool:
        """Whether there is a key-value store between ranks."""
        return self._store is not None

    def client(self) -> Any:
        """A client of the key-value store for one thread of its own; None for a single rank.

        A client that waits lets no other caller in. Where torch cannot make another one, it is
        the one that all use.
        """
        clone = getattr(self._store, "clone", None)
        return self._store if clone is None else clone()

    def key(self, name: str) -> str:
        """A key in the store that no other guard uses, alike on every rank."""
        return f"{self._key}/{name}"

    def newest(self) -> RunFile:
        """The run as the ranks have agreed on by now."""
        if self._store is None:
            return RunFile.read(self._run)
        return RunFile.of_text(self._store.get(self._key))

    def _started(self, start: Callable[[], RunFile]) -> RunFile:
        try:
            now = start()
        except Exception as error:  # because the other ranks wait to hear of it
            self._tell(_ERROR.decode() + " ".join(str(error).split()))
            raise
        self._tell(now.to_text())
        return now

    def _tell(self, text: str) -> None:
        if self._store is not None:
            self._store.set(self._key, text)

    def _swap(self, now: RunFile, wider: RunFile) -> bool:
        if self._store is None:
            return True
        text = wider.to_text()
        return bool(self._store.compare_set(self._key, now.to_text(), text).decode() == text)

    def _write_newest(self, now: RunFile) -> None:
        # whoever writes last has seen what all others had agreed on before
        while True:
            now.write(self._run)
            newest = self.newest()
            if newest.to_text() == now.to_text():
                return
            now = newest


def _from_environment() -> tuple[int, int]:
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
