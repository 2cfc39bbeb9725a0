"""Small messages between the ranks of a run, off the training's path and without a collective.

As in `ranks`, they go through the key-value store of the process group: a rank without a guard,
or one that dies, then leaves the others' collectives in order. A thread of its own, with a client
of its own, does it, because a client serves one caller at a time. It asks whether a key is there
and never waits inside of the store, so that it can always stop.
"""

from __future__ import annotations

import json
import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from ..ranks import Ranks

T = TypeVar("T")

PATIENCE: Final = 60.0  # seconds: more than ranks of one step are apart
AT_CLOSE: Final = 2.0  # seconds in which what was begun may still end
_GRACE: Final = 2.0  # seconds, for a thread that has to stop and is behind
_SHORT: Final = 1.0  # seconds, for a rank that has been silent before
_QUEUED: Final = 1000  # jobs: bounds the memory for them where the store does not answer
_LEADER: Final = 0


class Exchange:
    """Rounds: each rank gives a few bytes, rank 0 makes one answer of them, and all get that.

    Args:
        store: a client of the key-value store; nobody else may use it at the same time.
        key: begins all keys, alike on every rank.
        rank: of this process.
        deadline: gives when all rounds have to end, on the clock time.monotonic(); None for never.

    Attributes:
        silent: ranks that gave nothing in the newest round in which they should have.
    """

    def __init__(
        self,
        store: Any,
        key: str,
        rank: int,
        deadline: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._store, self._key, self._rank, self.deadline = store, key, rank, deadline
        self._mine: list[list[str]] = [[]]  # keys that this rank made, by job
        self.silent: set[int] = set()

    @property
    def over(self) -> bool:
        """Whether the deadline has passed."""
        end = self.deadline()
        return end is not None and time.monotonic() > end

    @property
    def leads(self) -> bool:
        """Whether this rank is the one that makes the answers."""
        return self._rank == _LEADER

    def round(
        self,
        name: str,
        mine: bytes | None,
        members: Iterable[int],
        answer: Callable[[dict[int, bytes]], bytes],
    ) -> bytes | None:
        """Give `mine`, and get the answer.

        Args:
            name: of the round, never the same twice.
            mine: what this rank gives; None on rank 0 where it is no member.
            members: ranks that give something, in the order of their numbers.
            answer: makes the answer from what the ranks gave; called on rank 0 alone. A rank that
                gave nothing in time is not in it.

        Returns:
            The answer, or None if there was none in time: on other ranks than 0 only.

        Raises:
            RuntimeError: the store cannot be reached any more.
        """
        if mine is not None and not self.leads:
            self._set(f"{name}/{self._rank}", mine)
        if not self.leads:
            # longer than rank 0 waits for a rank that is silent
            patience = _SHORT if _LEADER in self.silent else 2 * PATIENCE + _SHORT
            return self._await(f"{name}/answer", patience)
        given = {} if mine is None else {self._rank: mine}
        others = [rank for rank in members if rank != self._rank]
        given |= self._gather(name, others)
        said = answer(given)
        self._set(f"{name}/answer", said)
        return said

    def next_job(self) -> None:
        """Delete this rank's keys of the job before the last: whoever needed them has them."""
        self._mine.append([])
        if len(self._mine) > 3:
            for key in self._mine.pop(0):
                self._store.delete_key(key)

    def _set(self, name: str, value: bytes) -> None:
        key = f"{self._key}/{name}"
        self._store.set(key, value)
        self._mine[-1].append(key)

    def _await(self, name: str, patience: float) -> bytes | None:
        key = f"{self._key}/{name}"
        if not self._there([key], patience):
            self.silent.add(_LEADER)
            return None
        self.silent.discard(_LEADER)
        return bytes(self._store.get(key))

    def _gather(self, name: str, ranks: list[int]) -> dict[int, bytes]:
        keys = {rank: f"{self._key}/{name}/{rank}" for rank in ranks}
        usual = [keys[rank] for rank in ranks if rank not in self.silent]
        waited = self._there(usual, PATIENCE)
        if not waited or self.silent.intersection(ranks):
            self._there(list(keys.values()), _SHORT)
            here = [rank for rank in ranks if self._store.check([keys[rank]])]
        else:
            here = ranks
        self.silent = (self.silent - set(ranks)) | (set(ranks) - set(here))
        if not here:
            return {}
        found = self._store.multi_get([keys[rank] for rank in here])
        return dict(zip(here, map(bytes, found), strict=True))

    def _there(self, keys: list[str], patience: float) -> bool:
        """Whether all keys are there in time; asked for at growing distances."""
        if not keys:
            return True
        end, pause = time.monotonic() + patience, 0.001
        while not self._store.check(keys):
            if time.monotonic() > end or self.over:
                return False
            time.sleep(pause)
            pause = min(1.5 * pause, 0.25)
        return True


class InBackground(Generic[T]):
    """A thread that does jobs between ranks, one after the other, in the order they were given.

    Every rank gives the same jobs in the same order, from the thread of its training.

    Args:
        ranks: this process among them.
        name: tells the jobs of one check from those of another.

    Attributes:
        waiting: jobs of which `results` has not told yet.
        trouble: what ended the thread early, if something did.
        left_out: jobs that were refused, because too many wait or the thread has ended.
    """

    def __init__(self, ranks: Ranks, name: str) -> None:
        self._jobs: queue.SimpleQueue[Callable[[Exchange], T] | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[T] = queue.SimpleQueue()
        self.waiting = 0
        self._thread: threading.Thread | None = None
        self._ranks, self._key = ranks, ranks.key(name)
        self._deadline: float | None = None
        self.trouble: BaseException | None = None
        self.left_out = 0

    @property
    def works(self) -> bool:
        """Whether jobs are done: there is a store, and nothing went wrong with it."""
        return self._ranks.connected and self.trouble is None

    def do(self, job: Callable[[Exchange], T]) -> None:
        """Have a job done; returns at once. It is left out if too many wait."""
        if not self.works or self.waiting >= _QUEUED:
            self.left_out += 1
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="sdc-guard-ranks", daemon=True)
            self._thread.start()
        self.waiting += 1
        self._jobs.put(job)

    def results(self) -> list[T]:
        """What the jobs that ended since the last call returned."""
        found = []
        while not self._done.empty():
            found.append(self._done.get())
            self.waiting -= 1
        return found

    def close(self, seconds: float = AT_CLOSE) -> list[T]:
        """End what was begun, within `seconds`, and stop.

        Returns:
            as `results`.
        """
        if self._thread is not None:
            self._deadline = time.monotonic() + seconds
            self._jobs.put(None)
            self._thread.join(seconds + _GRACE)
        return self.results()

    def _serve(self) -> None:
        try:
            # here, because to connect may take a while
            client, rank = self._ranks.client(), self._ranks.rank
            exchange = Exchange(client, self._key, rank, lambda: self._deadline)
            while (job := self._jobs.get()) is not None and not exchange.over:
                exchange.next_job()
                self._done.put(job(exchange))
        except Exception as error:  # noqa: BLE001 - because it must not end in the thread
            self.trouble = error


@dataclass(frozen=True)
class Told:
    """One value as all ranks have it.

    Attributes:
        step: at which it was given.
        values: by rank, those that gave it in time.
        silent: the ranks that did not.
    """

    step: int
    values: dict[int, int]
    silent: tuple[int, ...]


class SameValue:
    """One named number compared between all ranks.

    Args:
        ranks: this process among them.
        name: of the number, alike on every rank.
    """

    def __init__(self, ranks: Ranks, name: str) -> None:
        self._world = ranks.world_size
        self._thread: InBackground[Told | None] = InBackground(ranks, name)

    @property
    def trouble(self) -> BaseException | None:
        """Why nothing is compared any more, if so."""
        return self._thread.trouble

    def tell(self, step: int, value: int) -> None:
        """Give this rank's value of `step`, 64 bits, signed or not; returns at once."""

        def answer(given: dict[int, bytes]) -> bytes:
            values = {rank: int.from_bytes(given[rank], "little") for rank in given}
            return json.dumps(sorted(values.items())).encode()

        def job(exchange: Exchange) -> Told | None:
            mine = (value % 2**64).to_bytes(8, "little")
            said = exchange.round(str(step), mine, range(self._world), answer)
            if said is None:
                return None
            values: dict[int, int] = dict(json.loads(said))
            silent = tuple(rank for rank in range(self._world) if rank not in values)
            return Told(step, values, silent)

        self._thread.do(job)

    def told(self) -> list[Told]:
        """What all ranks gave, for each step of which it is known since the last call.

        Values are unsigned. A step of which rank 0 made no answer in time is left out.
        """
        return [found for found in self._thread.results() if found is not None]

    def close(self, seconds: float = AT_CLOSE) -> list[Told]:
        """End what was begun, within `seconds`; what came of it."""
        return [found for found in self._thread.close(seconds) if found is not None]
