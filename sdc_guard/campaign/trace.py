"""What a guard recorded of a few steps, in memory, and how two such records differ."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..store.reader import RunReader

SIGNALS: Final = ("norm", "max_abs", "mean_abs", "nonfinite", "zeros")

_SPAN: Final = "WHERE step BETWEEN $first AND $last"
_STEPS: Final = f"SELECT step, loss, grad_norm, lr, batch_hash, skipped FROM steps {_SPAN}"
_LAYERS: Final = (
    f"SELECT step, layer, {', '.join(SIGNALS)} FROM layers {_SPAN} ORDER BY step, layer"
)
_DIGESTS: Final = f"SELECT step, phase, kind, layer, h, s1, s2 FROM digests {_SPAN}"
_ALERTS: Final = f"""
    SELECT step, layer, detector, severity, score, threshold, detail FROM alerts {_SPAN}
    ORDER BY step, detector, layer, detail
"""
_AUDITS: Final = f"""
    SELECT step, detail->>'verdict' FROM events {_SPAN} AND kind = 'audit' ORDER BY step
"""

Signals = tuple[float, float, float, int, int]


@dataclass(frozen=True)
class StepRow:
    """A step as it was recorded; NaN and None as they are."""

    loss: float | None
    grad_norm: float | None
    lr: float | None
    batch_hash: int | None
    skipped: bool | None


@dataclass(frozen=True)
class AlertRow:
    """One alert of the guard."""

    step: int
    layer: int | None
    detector: str
    severity: str
    score: float
    threshold: float
    detail: str


@dataclass(frozen=True)
class Trace:
    """The rows of some steps.

    Attributes:
        steps: by step.
        layers: by step, then layer: norm, max_abs, mean_abs, nonfinite, zeros of its gradient.
        digests: by step, then (phase, kind, layer): h, s1, s2.
        alerts: in the order of the steps.
        names: layer to name and number of elements.
        audits: verdict on each step that was run again before it was applied.
    """

    steps: dict[int, StepRow] = field(default_factory=dict)
    layers: dict[int, dict[int, Signals]] = field(default_factory=dict)
    digests: dict[int, dict[tuple[str, str, int], tuple[int, int, int]]] = field(
        default_factory=dict
    )
    alerts: tuple[AlertRow, ...] = ()
    names: dict[int, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    audits: dict[int, str] = field(default_factory=dict)

    def between(self, first: int, last: int) -> Trace:
        """The same of fewer steps, both ends included."""
        span = range(first, last + 1)
        return Trace(
            {step: row for step, row in self.steps.items() if step in span},
            {step: row for step, row in self.layers.items() if step in span},
            {step: row for step, row in self.digests.items() if step in span},
            tuple(alert for alert in self.alerts if alert.step in span),
            self.names,
            {step: verdict for step, verdict in self.audits.items() if step in span},
        )


def read_trace(run: Path, first: int, last: int, *, digests_from: int | None = None) -> Trace:
    """Read the trace that a closed guard left in its folder.

    Args:
        run: the folder.
        first, last: steps, both included.
        digests_from: the first step whose digests are read; `first` if left out.
    """
    span = {"first": first, "last": last}
    layers: dict[int, dict[int, Signals]] = defaultdict(dict)
    digests: dict[int, dict[tuple[str, str, int], tuple[int, int, int]]] = defaultdict(dict)
    with RunReader(run) as reader:
        steps = {step: StepRow(*row) for step, *row in reader.rows(_STEPS, span)}
        for step, layer, *values in reader.rows(_LAYERS, span):
            layers[step][layer] = tuple(values)
        later = {**span, "first": first if digests_from is None else digests_from}
        for step, phase, kind, layer, *words in reader.rows(_DIGESTS, later):
            digests[step][phase, kind, layer] = tuple(words)
        alerts = tuple(AlertRow(*row) for row in reader.rows(_ALERTS, span))
        names = {layer.id: (layer.name, layer.shape) for layer in reader.run_file.named}
        audits = dict(reader.rows(_AUDITS, span))
    return Trace(dict(sorted(steps.items())), dict(layers), dict(digests), alerts, names, audits)


@dataclass(frozen=True)
class Difference:
    """The first step at which two traces differ, and in what."""

    step: int
    what: tuple[str, ...]


def first_difference(trial: Trace, twin: Trace) -> Difference | None:
    """The first step at which a trace is not that of its replay, as `sdc-bisect verify` compares.

    Compared are batch hash, loss, learning rate, the measures of gradients, and the digests before
    and after the update, where both have them. NaN equals NaN.
    """
    for step in sorted(trial.steps):
        what = [
            *_step_differs(trial.steps[step], twin.steps.get(step)),
            *(["gradients"] if _differ(trial.layers.get(step), twin.layers.get(step)) else []),
            *_phases(trial.digests.get(step, {}), twin.digests.get(step, {})),
        ]
        if what:
            return Difference(step, tuple(what))
    return None


def _step_differs(one: StepRow, other: StepRow | None) -> list[str]:
    if other is None:
        return ["steps"]
    named = {
        "batch": (one.batch_hash, other.batch_hash),
        "loss": (one.loss, other.loss),
        "lr": (one.lr, other.lr),
    }
    return [name for name, (here, there) in named.items() if not _same(here, there)]


def _differ(one: dict[int, Signals] | None, other: dict[int, Signals] | None) -> bool:
    if one is None or other is None or one.keys() != other.keys():
        return one != other
    pairs = ((one[layer], other[layer]) for layer in one)
    return any(not _same(a, b) for here, there in pairs for a, b in zip(here, there, strict=True))


def _phases(one: dict[Any, Any], other: dict[Any, Any]) -> list[str]:
    both = one.keys() & other.keys()
    found = {key[0] for key in both if one[key] != other[key]}
    return [phase for phase in ("before", "after") if phase in found]


def _same(one: Any, other: Any) -> bool:
    nan = isinstance(one, float) and isinstance(other, float) and math.isnan(one)
    return one == other or (nan and math.isnan(other))
