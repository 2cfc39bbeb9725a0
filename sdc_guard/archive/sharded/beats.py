"""Signs of life of ranks that write a checkpoint: one that is dead is not waited for to the end.

While it writes, each rank counts up a key in the ranks' store every few seconds. A thread of its
own does so, and not the one that writes: that one may be stuck in a slow disk for minutes. And not
a file: it would be as late as that disk. So a silence is the process's: killed, stopped, or its
machine is gone. A process that is alive has the whole of the limit, however slow its disk is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from typing import Final

from .meeting import Meeting, NotSaved, listed

EVERY: Final = 5.0  # seconds from one beat to the next
SILENCE: Final = 120.0
"""Seconds without a beat after which a rank is given up. No thread of a process runs while another
one holds the interpreter's lock, as a pickle of gigabytes does; that has to be over by then."""
_JOINED: Final = 1.0  # seconds; a store that hangs must not keep the writer


class Beating:
    """Beats for this rank, within a `with`.

    Args:
        meeting: of the ranks; a single rank does not beat, nor does one without a client of its
            own for it, as with older releases of torch.
        number: of the meeting.
        every: seconds.
    """

    def __init__(self, meeting: Meeting, number: int, every: float = EVERY) -> None:
        self._meeting, self._number, self._every = meeting, number, every
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        if self._meeting.beats_apart:
            self._thread = threading.Thread(target=self._beat, name="sdc-guard-beat", daemon=True)
            self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_JOINED)

    def _beat(self) -> None:
        count = 0
        while True:
            count += 1
            self._meeting.beat(self._number, count)
            if self._ended.wait(self._every):
                return


class Listening:
    """How long other ranks have been silent, by this process's clock alone.

    Args:
        meeting: of the ranks.
        number: of the meeting.
        silence: see SILENCE.
        every: seconds from one look to the next, as from one beat to the next.
        clock: in seconds.
    """

    def __init__(
        self,
        meeting: Meeting,
        number: int,
        silence: float = SILENCE,
        every: float = EVERY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._meeting, self._number = meeting, number
        self._silence, self._every, self._clock = silence, every, clock
        self._looked = clock()
        self._last: dict[int, str] = {}
        self._since: dict[int, float] = {}  # seconds that each has been silent

    def check(self, ranks: Iterable[int]) -> None:
        """Look whether these ranks still beat, if it is time to.

        Raises:
            NotSaved: one has not for `silence` seconds.
        """
        passed = self._clock() - self._looked
        if passed < self._every:
            return
        self._looked += passed
        # all may have been suspended, and this process be the first to wake up
        passed = min(passed, 2 * self._every)
        others = [rank for rank in ranks if rank != self._meeting.rank]
        if not others or not self._meeting.beats_apart:
            return
        beats = self._meeting.beats(self._number, others)
        if beats is None:
            if self._meeting.rank == 0:
                return  # what the store does not tell is no rank's silence
            beats = {}  # it is gone with rank 0, or as good as that: nobody can tell the outcome
        for rank in others:
            beat = beats.get(rank, self._last.get(rank, ""))
            alive = beat != self._last.get(rank, "")
            self._last[rank] = beat
            self._since[rank] = 0.0 if alive else self._since.get(rank, 0.0) + passed
        silent = [rank for rank in others if self._since[rank] >= self._silence]
        if silent:
            had = "have" if len(silent) > 1 else "has"
            raise NotSaved(
                f"{listed(silent)} {had} given no sign of life for {self._silence:g} s: "
                "killed, stopped, or cut off"
            )
