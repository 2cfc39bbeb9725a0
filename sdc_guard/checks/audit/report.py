"""Telling what audits found: events, alerts, and strikes in the ledger."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path

from ...detect.alert import Alert
from ...detect.ladder import Finding
from ...ledger import Ledger
from ..check import Telling

DETECTOR = "step_audit"
_NAMES = 10  # of tensors in an alert
_REASONS = 50  # that are told; a message may have a number in it that is new each time
_AUDITS = 100  # audited steps from one line of the ledger to the next

_log = logging.getLogger("sdc_guard")


class AuditReport:
    """Tells each reason once, and each finding.

    Args:
        telling: takes events and alerts.
        ledger: takes strikes; None for no ledger.
        device: the serial of the device that is audited.
        run: the run's folder.
        rank: of this process.
    """

    def __init__(
        self, telling: Telling, ledger: Path | None, device: str, run: Path, rank: int
    ) -> None:
        self._telling, self._device, self._run, self._rank = telling, device, str(run), rank
        self._ledger_path = ledger
        self._ledger = None if ledger is None else Ledger(ledger)
        self._told: set[str] = set()
        self._untold = 0  # audits that the ledger does not count yet
        self._lost: OSError | None = None

    def not_comparable(self, step: int, reason: str, example: str = "") -> None:
        """Say once why steps cannot be compared.

        Args:
            example: of this step, added to the reason; another one is no other reason.
        """
        if reason in self._told or len(self._told) >= _REASONS:
            return
        self._told.add(reason)
        reason += example
        _log.warning("SDC Guard: step %d, audit: not comparable: %s", step, reason)
        detail = {"verdict": "not comparable", "reason": reason}
        self._telling.event(step, "audit", json.dumps(detail))

    def audited(
        self, step: int, finding: Finding, replays: int, elsewhere: Sequence[str], seconds: float
    ) -> None:
        """Record an audit."""
        detail = {
            "verdict": finding.verdict,
            "reason": finding.reason,
            "confidence": round(finding.confidence, 4),
            "replays": replays,
            "elsewhere": list(elsewhere),
            "seconds": round(seconds, 4),
        }
        self._telling.event(step, "audit", json.dumps(detail))
        self._untold += 1
        if self._untold >= _AUDITS:
            self._tell_ledger()

    def found(self, step: int, finding: Finding, tensors: list[str], loss: str) -> None:
        """Raise the alert of a finding; a step that is not what it should be is a strike.

        Args:
            tensors: names of the gradients that differ.
            loss: how the replays' loss compares with the step's, "" if that is not known.
        """
        where = self._device if finding.place == "here" else finding.place
        count = f"; {len(tensors)} gradients differ" if tensors else ""
        detail = {
            "text": f"{finding.verdict}: {finding.reason}{count}",
            "verdict": finding.verdict,
            "confidence": round(finding.confidence, 4),
            "device": where,
            "rank": self._rank,
            "tensors": tensors[:_NAMES],
            "count": len(tensors),
            "loss": loss,
        }
        severity = "proven" if finding.harmed else "suspect"
        name = tensors[0] if len(tensors) == 1 else ""
        score = float(len(tensors) or 1)
        alert = Alert(step, DETECTOR, None, name, score, 0.0, severity, detail)  # type: ignore[arg-type]
        self._telling.report([alert])
        if finding.harmed and finding.place == "here":
            self._strike(step, finding)

    def close(self) -> None:
        """Tell the ledger what it does not know yet."""
        self._tell_ledger()

    def raise_lost(self) -> None:
        """Raise what kept an entry from the ledger since the last call, if anything did.

        Raises:
            OSError: says what was lost.
        """
        lost, self._lost = self._lost, None
        if lost is not None:
            raise lost

    def _strike(self, step: int, finding: Finding) -> None:
        if self._ledger is None:
            return
        try:
            self._ledger.strike(
                self._device, self._run, step, finding.verdict, rank=self._rank,
                confidence=round(finding.confidence, 4), reason=finding.reason,
            )  # fmt: skip
        except OSError as error:
            what = f"a strike against {self._device} (step {step}, {finding.verdict})"
            self._lost = self._said_lost(what, error)
            _log.warning("SDC Guard: step %d, audit: %s", step, self._lost)
            self._telling.event(step, "ledger", str(self._lost))

    def _tell_ledger(self) -> None:
        count, self._untold = self._untold, 0
        if self._ledger is None or not count:
            return
        try:
            self._ledger.audits(self._device, self._run, count)
        except OSError as error:  # a lost strike tells more
            what = f"the count of {count} audits of {self._device}"
            self._lost = self._lost or self._said_lost(what, error)

    def _said_lost(self, what: str, error: OSError) -> OSError:
        why = error.strerror or str(error)
        return OSError(f"{what} is not in the ledger {self._ledger_path}: {why}")
