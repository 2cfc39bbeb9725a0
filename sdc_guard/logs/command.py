"""What `sdc-guard check-log` does, apart from its options."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import EXIT_USAGE, SdcGuardError, UsageError
from ..plain_json import plain
from .columns import Asked
from .judged import Judged, judge_file
from .words import incident_line


@dataclass
class Checked:
    """What several files showed, and which of them could not be read."""

    logs: list[Judged] = field(default_factory=list)
    errors: list[SdcGuardError] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """1 with an incident; else 2 if a file could not be read; else 0."""
        if any(one.report.incidents for one in self.logs):
            return 1
        return EXIT_USAGE if self.errors else 0

    def as_object(self, budget: float) -> dict[str, Any]:
        """The content of the JSON output."""
        return {
            "incidents": [one for log in self.logs for one in _incidents(log)],
            "logs": [_log(log) for log in self.logs],
            "errors": [error.as_dict() for error in self.errors],
            "budget": budget,
        }


def check(files: list[Path], asked: Asked, run: str | None, budget: float) -> Checked:
    """Judge each file; one that cannot be read does not keep the others from it.

    Raises:
        SdcGuardError: the only file cannot be read, or the budget is none.
    """
    if not 0 < budget < 0.01:
        raise UsageError(
            f"a budget of {budget:g} false incidents a row",
            next_step="give one above 0 and below 0.01, 1e-4 say",
        )
    checked = Checked()
    for file in files:
        try:
            checked.logs += judge_file(file, asked, run, budget)
        except SdcGuardError as error:
            if len(files) == 1:
                raise
            checked.errors.append(error)
        except OSError as raised:
            unread = UsageError(raised.strerror or str(raised), where=str(file))
            if len(files) == 1:
                raise unread from None
            checked.errors.append(unread)
    return checked


def _incidents(log: Judged) -> list[dict[str, Any]]:
    return [
        {
            "first_step": one.first_step,
            "last_step": one.last_step,
            "kind": one.kind,
            "peak": plain(one.peak),
            "usual": plain(one.usual),
            "kinds": list(one.kinds),
            "rows": one.rows,
            "score": plain(one.score),
            "limit": one.limit,
            "adopted_at": one.adopted,
            "open_at_end": one.at_end,
            "text": incident_line(one),
            "file": log.file,
            "run": log.run,
            "writer": log.writer,
        }
        for one in log.report.incidents
    ]


def _log(log: Judged) -> dict[str, Any]:
    return {
        "file": log.file,
        "format": log.format,
        "run": log.run,
        "writer": log.writer,
        "rows": log.rows,
        "first_step": log.first_step,
        "last_step": log.last_step,
        "columns": log.columns,
        "restarts": [{"step": event.step, "text": event.text} for event in log.report.events],
        "incidents": len(log.report.incidents),
        "notes": list(log.notes),
    }
