"""On this machine: an oracle's command is a process of its own, so threads are enough."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from .executor import Answer, Item


@dataclass(frozen=True)
class Local:
    """Up to `jobs` at once.

    Attributes:
        jobs: 1 takes no thread.
        stop: called on Ctrl-C, to end what is still running.
    """

    jobs: int = 1
    stop: Callable[[], None] = lambda: None

    def run(
        self, call: Callable[[Item], Answer], items: Sequence[Item]
    ) -> Generator[tuple[Item, Answer]]:
        """As `Executor.run`."""
        if self.jobs == 1:
            for item in items:
                yield item, call(item)
            return
        pool = ThreadPoolExecutor(self.jobs)
        try:  # from the first one on: Ctrl-C may come before the last one is submitted
            yield from answers({pool.submit(call, item): item for item in items})
        except (KeyboardInterrupt, GeneratorExit):
            pool.shutdown(wait=False, cancel_futures=True)
            self.stop()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def answers(running: dict[Future[Answer], Item]) -> Iterator[tuple[Item, Answer]]:
    """The answers of futures as `Executor.run` gives them."""
    told: set[Future[Answer]] = set()
    error: BaseException | None = None
    try:
        for future in as_completed(running):
            told.add(future)
            if (raised := future.exception()) is not None:
                error = error or raised
            else:
                yield running[future], future.result()
    except KeyboardInterrupt:
        for future in set(running) - told:
            if future.done() and not future.cancelled() and future.exception() is None:
                yield running[future], future.result()
        raise
    if error is not None:
        raise error
