"""Alerts that belong together, and how much may be claimed of them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Final

from .alert import Alert
from .ladder import VERDICTS

_AUDIT: Final = "step_audit"
QUIET_STEPS: Final = 50  # a statistical incident closes after so many steps without an alert
# proven of the guard's own batch or of a device, and not of the state that is trained and saved
_BESIDE_THE_STATE: Final = frozenset({"shadow_batch", "known_answer"})


@dataclass(frozen=True)
class Incident:
    """One or more alerts.

    Attributes:
        number: 1 for the first of an attempt.
        opened: step of the first alert.
        last: step of the newest alert.
        closed: step at which it closed, or None.
        proven: whether an exact comparison of what is trained is among its evidence. State that
            is proven to be corrupt stays so: such an incident does not close by quiet.
        verdict: "undetermined" until an audit, which ran a step again, says more: see `ladder`.
        detectors: who reported, in order of first report.
        first: the first alert, as text.
        alerts: how many.
    """

    number: int
    opened: int
    last: int
    closed: int | None
    proven: bool
    verdict: str
    detectors: tuple[str, ...]
    first: str
    alerts: int

    def evidence_json(self) -> str:
        """The evidence as it is stored."""
        return json.dumps(
            {
                "alerts": self.alerts,
                "detectors": list(self.detectors),
                "proven": self.proven,
                "first": self.first,
            }
        )


class IncidentBook:
    """Groups alerts in the order of their steps; at most one incident is open at a time."""

    def __init__(self) -> None:
        self.open: Incident | None = None
        self._count = 0

    def update(self, step: int, alerts: list[Alert]) -> list[Incident]:
        """Take in the alerts of one step.

        Returns:
            the incidents that opened, grew in kind or closed, each as it is now.
        """
        if alerts:
            return self._grow(step, alerts)
        if self.open is None or self.open.proven or step - self.open.last < QUIET_STEPS:
            return []
        closed = replace(self.open, closed=step)
        self.open = None
        return [closed]

    def _grow(self, step: int, alerts: list[Alert]) -> list[Incident]:
        before = self.open
        if before is None:
            self._count += 1
            before = Incident(
                self._count, step, step, None, False, "undetermined", (), str(alerts[0]), 0
            )
        detectors = dict.fromkeys([*before.detectors, *(alert.detector for alert in alerts)])
        now = replace(
            before,
            last=step,
            proven=before.proven or any(map(_convicts_the_state, alerts)),
            detectors=tuple(detectors),
            alerts=before.alerts + len(alerts),
            verdict=_verdict(before, alerts),
        )
        self.open = now
        news = (now.detectors, now.proven, now.verdict) != (
            before.detectors,
            before.proven,
            before.verdict,
        )
        return [now] if news else []


def _verdict(before: Incident, alerts: list[Alert]) -> str:
    """The newest audit's, unless other evidence proves what the audit did not see."""
    verdict, proven = before.verdict, before.proven
    for alert in alerts:
        said = alert.detail.get("verdict")
        if alert.detector == _AUDIT and said in VERDICTS and said != "undetermined":
            verdict = said if alert.severity == "proven" or not proven else verdict
        proven = proven or alert.severity == "proven"
    return verdict


def _convicts_the_state(alert: Alert) -> bool:
    return alert.severity == "proven" and alert.detector not in _BESIDE_THE_STATE
