"""The answer of a run's report for the page, and the report's files for download.

It is the answer of the report that `sdc-bisect report` writes. The page makes it anew when the run
has changed, and no more often than it takes to read one. The rest of the report, which takes passes
over all rows of the run, is made when somebody downloads a file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from forensics.reporting.answered import Answered
from forensics.reporting.at_place import answer_at, report_at, written
from sdc_guard.store.opening import open_run
from sdc_guard.store.trace_reader import TraceReader

_LEAST: Final = 5.0  # seconds for which an answer of a run that is being written is shown
_SHARE: Final = 20.0  # of the time at most a twentieth goes into answers

# suffix and media type of each form
FILES: Final = {
    "html": ("report.html", "text/html"),
    "md": ("report.md", "text/markdown"),
    "json": ("report.json", "application/json"),
}


@dataclass(frozen=True)
class Dated:
    """The answer of a report as of a moment, in seconds since the epoch."""

    answer: Answered
    made: float


@dataclass
class KeptAnswer:
    """The newest answer about one run, for all who look at it."""

    place: str
    clock: Callable[[], float] = time.time
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _version: int | None = None
    _known: Dated | None = None
    _took: float = 0.0  # seconds

    def of(self, version: int, reader: TraceReader) -> Dated:
        """The answer about the run's files as they are in this version, or a few seconds ago.

        Args:
            version: of the run.
            reader: of it, at its newest attempt.

        Raises:
            SdcGuardError: the run cannot be read.
        """
        with self._lock:
            now = self.clock()
            known = self._known
            if known is not None and (version == self._version or now - known.made < self._stands):
                return known
            self._known = Dated(answer_at(self.place, reader), now)
            self._version, self._took = version, self.clock() - now
            return self._known

    @property
    def _stands(self) -> float:
        return max(_LEAST, _SHARE * self._took)

    def lags(self, version: int) -> bool:
        """Whether what was given last is not of this version."""
        return version != self._version


def report_file(place: str, form: str) -> bytes:
    """A report as `sdc-bisect report --format FORM` writes it, made now."""
    return written(report_at(place, None, time.time(), open_run), form).encode()
