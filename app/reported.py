"""The report of a run for the page, and its files for download.

It is the report that `sdc-bisect report` writes. The page makes it anew when the run has changed,
and no more often than it takes to read one; a file is made when somebody downloads it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from forensics.reporting.at_place import report_at, written
from forensics.reporting.facts import Report
from sdc_guard.store.opening import open_run

_LEAST: Final = 5.0  # seconds for which a report of a run that is being written is shown
_SHARE: Final = 20.0  # of the time at most a twentieth goes into reports

# suffix and media type of each form
FILES: Final = {
    "html": ("report.html", "text/html"),
    "md": ("report.md", "text/markdown"),
    "json": ("report.json", "application/json"),
}


@dataclass
class KeptReport:
    """The newest report of one run, for all who look at it."""

    place: str
    clock: Callable[[], float] = time.time
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _version: int | None = None
    _report: Report | None = None
    _took: float = 0.0  # seconds

    def of(self, version: int) -> Report:
        """The report of the run's files as they are in this version, or a few seconds ago.

        Raises:
            SdcGuardError: the run cannot be read.
        """
        with self._lock:
            now = self.clock()
            known = self._report
            if known is not None and (version == self._version or now - known.made < self._stands):
                return known
            self._report = report_at(self.place, None, now, open_run)
            self._version, self._took = version, self.clock() - now
            return self._report

    @property
    def _stands(self) -> float:
        return max(_LEAST, _SHARE * self._took)

    def lags(self, version: int) -> bool:
        """Whether what was given last is not of this version."""
        return version != self._version


def report_file(place: str, form: str) -> bytes:
    """A report as `sdc-bisect report --format FORM` writes it, made now."""
    return written(report_at(place, None, time.time(), open_run), form).encode()
