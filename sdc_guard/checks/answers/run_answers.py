"""The run's recorded answers, looked up in a thread: a file system may take its time."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

from ...detect.alert import Alert
from ...detect.answers import Known
from ...detect.known_answer import recorded_alert
from ...store.known_answers import RecordedAnswer, first_recorded


class Lookup:
    """Finds what the run has recorded for an environment, or records this process's answer.

    Args:
        run: the run's folder.
        key: of the environment.
        where: the device, in words.
        mine: this process's answer.
        known: what is known of it beforehand.
    """

    def __init__(self, run: Path, key: str, where: str, mine: RecordedAnswer, known: Known) -> None:
        self.step = mine.step
        self._run, self._key, self._where = run, key, where
        self._mine, self._known = mine, known
        self._found: RecordedAnswer | None = None
        self._error: Exception | None = None
        self._thread = threading.Thread(
            target=self._find, name="sdc-guard-known-answer", daemon=True
        )
        self._thread.start()

    def done(self, *, within: float = 0.0) -> bool:
        """Whether it has come to an end, at most `within` seconds from now."""
        if within:
            self._thread.join(within)
        return not self._thread.is_alive()

    def detail(self) -> str:
        """What is recorded as an event.

        Raises:
            RunFormatError, OSError: why nothing could be found.
        """
        theirs = self._theirs()
        return json.dumps(
            {
                "device": self._where,
                "environment": self._key,
                "hash": self._mine.answer.hash,
                "recorded": None
                if theirs is self._mine
                else {**theirs.source, "hash": theirs.answer.hash},
            }
        )

    def alerts(self) -> list[Alert]:
        """An alert if another answer is recorded.

        Raises:
            RunFormatError, OSError: as above.
        """
        mine, theirs = self._mine.answer, self._theirs()
        if mine.hash == theirs.answer.hash:
            return []
        source: dict[str, Any] = theirs.source
        return [recorded_alert(self.step, self._where, mine, theirs.answer, self._known, source)]

    def _theirs(self) -> RecordedAnswer:
        if self._error is not None:
            raise self._error
        assert self._found is not None
        return self._found

    def _find(self) -> None:
        try:
            self._found = first_recorded(self._run, self._key, self._mine)
        except Exception as error:  # noqa: BLE001 - because a thread has nobody to raise it to
            self._error = error
