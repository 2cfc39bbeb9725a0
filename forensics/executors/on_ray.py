"""On a Ray cluster. The checkpoints and the command must be there under the same paths."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

from sdc_guard.errors import SdcGuardError, UsageError

from .executor import Answer, Item, WorkerLost
from .ray_cluster import RayCluster
from .ray_task import Outcome, task


class OnRay:
    """Up to `jobs` tasks at once on the cluster that RAY_ADDRESS names, or on one of its own.

    Args:
        jobs: at once.

    Raises:
        UsageError: Ray is not installed, or its cluster cannot be reached or started.
    """

    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self._cluster = RayCluster.of(jobs)
        self._ray = self._cluster.ray

    def __enter__(self) -> OnRay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the cluster that was started here, or leave the one that was there before."""
        self._cluster.close()

    def run(
        self, call: Callable[[Item], Answer], items: Sequence[Item]
    ) -> Generator[tuple[Item, Answer]]:
        """As `Executor.run`; `call` and the items are pickled.

        Raises:
            WorkerLost: the process, or the machine, that judged an item ended.
            UsageError: the workers lack this package, or the working directory.
        """
        # an attempt that died may have been killed for what it does: no second one by itself
        remote = self._ray.remote(task()).options(max_retries=0, num_cpus=1)
        waiting = [(item, pickle.dumps((call, item))) for item in items][::-1]
        running: dict[Any, Item] = {}
        error: BaseException | None = None
        try:
            while waiting or running:
                while waiting and len(running) < self.jobs:
                    item, payload = waiting.pop()
                    running[remote.remote(payload, str(Path.cwd()))] = item
                for item, outcome in self._done(running, None):
                    if isinstance(outcome, BaseException):
                        error = error or outcome
                    else:
                        yield item, outcome[0]
        except KeyboardInterrupt:
            for item, outcome in self._done(running, 0):
                if not isinstance(outcome, BaseException):
                    yield item, outcome[0]
            self._cancel(running)
            raise
        except GeneratorExit:
            self._cancel(running)
            raise
        if error is not None:
            raise error

    def _done(
        self, running: dict[Any, Item], timeout: float | None
    ) -> list[tuple[Item, tuple[Any] | BaseException]]:
        """Take what is over out of `running`: answers, and what came in their place.

        Args:
            running: items by their references.
            timeout: seconds to wait for the first one; None without end.
        """
        if not running:
            return []
        most = 1 if timeout is None else len(running)
        ready, _ = self._ray.wait(list(running), num_returns=most, timeout=timeout)
        found: list[tuple[Item, tuple[Any] | BaseException]] = []
        for reference in ready:
            item = running.pop(reference)
            found.append((item, self._outcome(reference, item)))
        return found

    def _outcome(self, reference: Any, item: Item) -> tuple[Any] | BaseException:
        errors = self._ray.exceptions
        try:
            outcome: Outcome = self._ray.get(reference)
        except errors.RayTaskError as error:  # what no one foresaw: its own traceback is told
            cause = error.cause
            return cause if isinstance(cause, Exception) else error
        except errors.RayError as error:  # the process, the machine, or Ray itself
            return WorkerLost(item, type(error).__name__)
        if outcome[0] == "answer":
            return (outcome[1],)
        if outcome[0] == "refused":
            kind, what, where, next_step = outcome[1]
            refusal: SdcGuardError = kind(what, where=where, next_step=next_step)
            return refusal
        return UsageError(
            f"a Ray worker cannot judge: {outcome[1]}",
            where=f"machine {outcome[2]}",
            next_step="the workers need the same packages and must see the same paths",
        )

    def _cancel(self, running: dict[Any, Item]) -> None:
        for reference in running:
            self._ray.cancel(reference, force=True)
