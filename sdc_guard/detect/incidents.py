"""Alerts that belong together, and how much may be claimed of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from .alert import Alert
from .carried import ADVICE
from .ladder import VERDICTS

T = TypeVar("T")

_AUDIT: Final = "step_audit"
QUIET_STEPS: Final = 50  # a statistical incident closes after so many steps without an alert
# proven of the guard's own batch or of a device, and not of the state that is trained and saved
_BESIDE_THE_STATE: Final = frozenset({"shadow_batch", "known_answer"})
_MOST_NAMES: Final = 20  # layers that are told by name, and ranks
_MUCH_WORSE: Final = 2.0  # times the peak told last: then the new one is told before it closes


@dataclass(frozen=True)
class Peak:
    """The alert of a statistic that stood out most.

    Attributes:
        times: its score in thresholds, without its sign.
        step, detector, layer: of it; layer "" for the whole step.
    """

    times: float
    step: int
    detector: str
    layer: str


@dataclass(frozen=True)
class Incident:
    """One or more alerts.

    Attributes:
        number: 1 for the first of an attempt.
        opened: lowest step of an alert: what is found between ranks is told some steps later.
        last: highest step of an alert.
        closed: step at which it closed, or None.
        proven: whether an exact comparison of what is trained is among its evidence. State that
            is proven to be corrupt stays so: such an incident does not close by quiet.
        verdict: "undetermined" until an audit, which ran a step again, says more: see `ladder`.
        detectors: who reported, in order of first report.
        first: the first alert, as text.
        alerts: how many.
        layers: names of those that alerts were about, in order, the first 20.
        ranks: numbers of those that alerts named, likewise.
        peak: of its statistics; None if all were exact comparisons.
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
    layers: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    peak: Peak | None = None

    def doubt(self) -> str:
        """Why a checkpoint that is saved while it is open is suspect, in words.

        The advice to the script's author is the alert's, and not said again of each checkpoint.
        """
        first = self.first.removeprefix(f"step {self.opened}: ").removesuffix(ADVICE)
        return f"incident open since step {self.opened}: {first}"

    def evidence_json(self) -> str:
        """The evidence as it is stored."""
        peak: dict[str, Any] = {"peak": None}
        if self.peak is not None:
            where = {"step": self.peak.step, "detector": self.peak.detector}
            peak = {
                "peak": float(f"{self.peak.times:.6g}"),
                "peak_at": where | {"layer": self.peak.layer},
            }
        return json.dumps(
            {
                "alerts": self.alerts,
                "detectors": list(self.detectors),
                "proven": self.proven,
                "first": self.first,
                **peak,
                "layers": list(self.layers),
                "ranks": list(self.ranks),
                "first_step": self.opened,
                "last_step": self.last,
            }
        )

    def told(self) -> tuple[Any, ...]:
        """What is worth a row of its own when it changes."""
        return self.detectors, self.proven, self.verdict, self.layers, self.ranks, self.opened


class IncidentBook:
    """Groups alerts in the order of their steps; at most one incident is open at a time."""

    def __init__(self) -> None:
        self.open: Incident | None = None
        self._count = 0
        self._told_peak = 0.0

    def update(self, step: int, alerts: list[Alert]) -> list[Incident]:
        """Take in the alerts of one step.

        Returns:
            the incidents that opened, grew in kind, became much worse or closed, each as it is now.
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
            self._count, self._told_peak = self._count + 1, 0.0
            before = Incident(
                self._count, step, step, None, False, "undetermined", (), str(alerts[0]), 0
            )
        ranks = (alert.detail.get("rank") for alert in alerts)
        now = replace(
            before,
            opened=min(step, before.opened),
            last=max(step, before.last),
            proven=before.proven or any(map(_convicts_the_state, alerts)),
            detectors=_joined(before.detectors, (alert.detector for alert in alerts)),
            alerts=before.alerts + len(alerts),
            verdict=_verdict(before, alerts),
            layers=_joined(before.layers, (a.layer_name for a in alerts if a.layer_name))[
                :_MOST_NAMES
            ],
            ranks=_joined(before.ranks, (rank for rank in ranks if isinstance(rank, int)))[
                :_MOST_NAMES
            ],
            peak=_peak(before.peak, alerts),
        )
        self.open = now
        worse = now.peak is not None and now.peak.times >= _MUCH_WORSE * self._told_peak > 0
        if not worse and now.told() == before.told() and before.alerts:
            return []
        self._told_peak = 0.0 if now.peak is None else now.peak.times
        return [now]


def _joined(before: tuple[T, ...], more: Iterable[T]) -> tuple[T, ...]:
    """Each once, in the order in which they came."""
    return tuple(dict.fromkeys([*before, *more]))


def _peak(before: Peak | None, alerts: list[Alert]) -> Peak | None:
    found = [before] if before is not None else []
    for alert in alerts:
        if alert.severity == "suspect" and alert.threshold > 0:
            times = abs(alert.score) / alert.threshold
            if math.isfinite(times):
                found.append(Peak(times, alert.step, alert.detector, alert.layer_name))
    return max(found, key=lambda peak: peak.times, default=None)


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
