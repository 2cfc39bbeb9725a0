"""Answers that take long: made apart from the page, kept, and good for a while as a run grows.

A page never waits for what reads many millions of rows. It asks; what is known is shown, with the
step up to which it counts, and a thread makes what is newer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

_T = TypeVar("_T")

_SHARE: Final = 20.0  # of the time at most a twentieth goes into answers, while a run grows
_QUICK: Final = 0.5  # seconds; what takes less is done again at once


@dataclass(frozen=True)
class Answer(Generic[_T]):
    """An answer.

    Attributes:
        value: what was asked for.
        version: of the run that it is about.
        seconds: how long it took.
        made: when, by the clock; no two answers of a server have the same.
    """

    value: _T
    version: int
    seconds: float
    made: float


@dataclass
class Standing(Generic[_T]):
    """The newest answers to a few questions about one run, for all browser sessions.

    Args:
        most: how many questions' answers are kept; the one asked longest ago goes first.
        clock: seconds, never going back.
        pause: seconds that a thread waits before it makes an answer that nobody waits for, so that
            the page which asked is shown first.
    """

    most: int
    clock: Callable[[], float] = time.monotonic
    pause: float = 0.0
    _lock: threading.RLock = field(default_factory=threading.RLock)
    _kept: dict[object, Answer[_T]] = field(default_factory=dict)
    _making: dict[object, threading.Lock] = field(default_factory=dict)
    _failed: dict[object, tuple[int, Exception]] = field(default_factory=dict)

    def of(
        self, key: object, version: int, make: Callable[[], _T], *, at_once: bool
    ) -> Answer[_T] | None:
        """The answer to a question about a version of the run, or one that is not much older.

        What took long is not done again because the run has grown by a step: until twenty times
        as long has gone by the older answer stands, and then it stands until the next is there.

        Args:
            key: names the question.
            version: of the run.
            make: makes the answer; any thread may call it.
            at_once: wait for it where there is none yet; else None is returned then, and `news`
                tells when to ask again.

        Raises:
            Exception: what `make` raised for this version.
        """
        known = self._known(key)
        if known is not None and known.version == version:
            return known
        self._raise(key, version)
        quick = known.seconds < _QUICK if known is not None else at_once
        if quick:
            return self._made(key, version, make)
        if self._is_due(known):
            self._make_apart(key, version, make)
        return known

    def news(
        self, key: object, version: int, make: Callable[[], _T], shown: Answer[_T] | None
    ) -> bool:
        """Whether there is another answer than the one that is shown, or why there is none.

        Also when nobody runs the page again: what is due by now is begun.
        """
        with self._lock:
            if self._kept.get(key) is not shown or key in self._failed:
                return True
        if self._is_due(shown):
            self._make_apart(key, version, make)
        return False

    def _is_due(self, known: Answer[_T] | None) -> bool:
        return known is None or self.clock() - known.made >= _SHARE * known.seconds

    def _known(self, key: object) -> Answer[_T] | None:
        with self._lock:
            found = self._kept.pop(key, None)
            if found is not None:
                self._kept[key] = found  # asked for last
            return found

    def _raise(self, key: object, version: int) -> None:
        with self._lock:
            of_version, error = self._failed.pop(key, (version, None))
        if error is not None and of_version == version:
            raise error

    def _made(self, key: object, version: int, make: Callable[[], _T]) -> Answer[_T]:
        """The answer, made by this thread unless another one is at it: then by that."""
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        with making:
            known = self._known(key)
            if known is not None and known.version == version:
                return known
            return self._put(key, version, make)

    def _put(self, key: object, version: int, make: Callable[[], _T]) -> Answer[_T]:
        started = self.clock()
        value = make()
        made = self.clock()
        answer = Answer(value, version, made - started, made)
        with self._lock:
            self._kept.pop(key, None)
            self._kept[key] = answer
            while len(self._kept) > self.most:
                del self._kept[next(iter(self._kept))]
        return answer

    def _make_apart(self, key: object, version: int, make: Callable[[], _T]) -> None:
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
            if not making.acquire(blocking=False):
                return  # somebody is at it

        def work() -> None:
            try:
                time.sleep(self.pause)
                self._put(key, version, make)
            except Exception as error:  # noqa: BLE001 - because no one waits here: who asks next is told
                with self._lock:
                    self._failed[key] = (version, error)
            finally:
                making.release()

        threading.Thread(target=work, daemon=True).start()
