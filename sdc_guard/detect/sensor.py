"""From one step's numbers to alerts: the statistical detectors, which suspect and never convict.

Each layer's gradient norm, its largest element relative to that and its share of zeros are judged
by `double_centred`, small lasting shifts of the norm by `cusum`, the norm of all layers together
by its own past. Thresholds come from a budget of false incidents, see `peaks`: each of these
`STATISTICS` has an equal part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from . import tails
from .alert import Alert
from .double_centred import WINDOW, Bools, Floats
from .layer_watch import Judged, LayerWatch
from .not_finite import NotFinite, all_finite
from .shift_watch import JudgedShift, ShiftWatch
from .step_signals import Ints, Statistics, StepSignals, statistics_of

FALSE_INCIDENTS: Final = 1e-4  # a step
STATISTICS: Final = ("norm", "peak", "zeros", "shift", "total")
MOST_ALERTS: Final = 16  # of a step and detector; the text of the first says how many there were


@dataclass(frozen=True)
class StepScores:
    """Scores of one step before any threshold, signed; NaN where nothing is judged.

    Attributes:
        norm: float64 (layers,), robust z of the double-centred log norm.
        peak: likewise, of log(max|g|/norm).
        zeros: likewise, of the log-odds of an element to be zero.
        shift: float64 (layers,), the larger CUSUM sum, in σ of the norm.
        total: robust z of the log of the norm of all layers together.
    """

    norm: Floats
    peak: Floats
    zeros: Floats
    shift: Floats
    total: float


@dataclass(frozen=True)
class _Block:
    """Some steps, judged by everything."""

    statistics: Statistics
    norm: Judged
    peak: Judged
    zeros: Judged
    shift: JudgedShift
    total: Judged

    @property
    def quiet(self) -> bool:
        """Whether nothing is over its threshold."""
        found = (self.norm, self.peak, self.zeros, self.shift, self.total)
        return not any(judged.over.any() for judged in found)


class StepSensor:
    """Judges the gradients and the loss of each step.

    Args:
        names: the layers' names in the order of their numbers.
        numel: elements of each layer's gradient.
        false_incidents: budget, as a probability per step of a healthy run; None raises no
            statistical alerts: what is not finite is told all the same.
    """

    def __init__(
        self,
        names: Sequence[str],
        numel: Sequence[int] | Ints,
        *,
        false_incidents: float | None = FALSE_INCIDENTS,
    ) -> None:
        self._names, self._numel = list(names), np.asarray(numel, dtype=np.int64)
        layers = len(self._names)
        budget = None if false_incidents is None else false_incidents / len(STATISTICS)
        self._norm = LayerWatch(layers, floor=tails.NORM_FLOOR, tail=tails.NORM, budget=budget)
        self._peak = LayerWatch(layers, floor=tails.PEAK_FLOOR, tail=tails.PEAK, budget=budget)
        self._zeros = LayerWatch(layers, floor=tails.ZEROS_FLOOR, tail=tails.ZEROS, budget=budget)
        self._total = LayerWatch(1, floor=tails.NORM_FLOOR, tail=tails.TOTAL, budget=budget)
        self._shift = ShiftWatch(layers, tail=tails.SHIFT, budget=budget)
        self._finite = NotFinite(self._names)
        self._been_zero = np.zeros(layers, dtype=bool)
        self._was_zero = np.zeros(layers, dtype=bool)

    # what is judged

    def judge(self, step: int, signals: StepSignals, loss: float | None) -> list[Alert]:
        """Alerts of one step, which is taken in.

        Args:
            step: the optimizer step.
            signals: of all layers, shape (layers,).
            loss: the training loss, or None when it was not observed.
        """
        block = self._judged(signals.many)
        alerts = [*self.judge_loss(step, loss), *self._finite.judge(step, signals.nonfinite)]
        if not block.quiet:
            alerts += self._alerts(step, block)
        self._admit(block, signals.many)
        return alerts

    def admit_quiet(self, signals: StepSignals, losses: Sequence[float | None]) -> bool:
        """Take in several steps if `judge` would raise no alert in any of them.

        Args:
            signals: shape (steps, layers).
            losses: of each step, or None.

        Returns:
            False if it might: nothing was taken in, and each step has to be judged.
        """
        steps = len(signals.norms)
        if not all_finite(signals.nonfinite, losses) or steps >= WINDOW:
            return False
        before = self._remember(steps)
        first = 0
        while first < steps:
            part = signals.steps(first, first + self._norm.at_once)
            block = self._judged(part)
            if not block.quiet:
                self._go_back(before)
                return False
            self._admit(block, part)
            first += len(part.norms)
        self._finite.take_quiet(losses)
        return True

    def judge_loss(self, step: int, loss: float | None) -> list[Alert]:
        """Alerts of a step of which only the loss is to be judged."""
        return self._finite.judge_loss(step, loss)

    def scores(self, signals: StepSignals) -> StepScores:
        """The scores that `judge` would compare with `thresholds`; nothing is taken in.

        Args:
            signals: of one step, shape (layers,).
        """
        block = self._judged(signals.many)
        return StepScores(
            norm=block.norm.score[0, 0],
            peak=block.peak.score[0, 0],
            zeros=block.zeros.score[0, 0],
            shift=block.shift.score[0, 0],
            total=float(block.total.score[0, 0, 0]),
        )

    @property
    def thresholds(self) -> dict[str, float]:
        """What |score| of each of `STATISTICS` is compared with now; inf for never."""
        watches = (self._norm, self._peak, self._zeros, self._shift, self._total)
        values = [watch.threshold.value for watch in watches]
        return dict(zip(STATISTICS, values, strict=True))

    def _judged(self, signals: StepSignals) -> _Block:
        found = statistics_of(signals, self._numel, self._been_zero)
        norm = self._norm.judge(found.norm[:, None])
        z = norm.score if not norm.over.any() else np.where(norm.over, np.nan, norm.score)
        peak = self._peak.judge(found.peak[:, None])
        # one layer's fault moves the total, too, and is told by its own name
        explained = (norm.over | peak.over).any(axis=(1, 2))
        total = np.where(explained, np.nan, found.total) if explained.any() else found.total
        return _Block(
            statistics=found,
            norm=norm,
            peak=peak,
            zeros=self._zeros.judge(found.zeros[:, None]),
            shift=self._shift.judge(z),
            total=self._total.judge(total[:, None, None]),
        )

    def _admit(self, block: _Block, signals: StepSignals) -> None:
        anew = self._norm.admit(block.norm)
        self._peak.admit(block.peak)
        self._zeros.admit(block.zeros)
        self._total.admit(block.total)
        self._shift.admit(block.shift, anew)
        self._learn_zeros(signals)

    def _learn_zeros(self, signals: StepSignals) -> None:
        """Layers that were entirely zero and are not any more, or were so before being judged."""
        if not (signals.norms == 0).any() and not self._was_zero.any():
            return
        young = ~self._zeros.past.judgeable[0]
        for norms in signals.norms:
            zero = norms == 0
            self._been_zero = self._been_zero | (self._was_zero & (norms > 0)) | (zero & young)
            self._was_zero = np.where(np.isfinite(norms), zero, self._was_zero)

    def _remember(self, steps: int) -> list[tuple[Any, Any]]:
        watches = (self._norm, self._peak, self._zeros, self._total, self._shift)
        zero = (self._been_zero, self._was_zero)
        return [*((watch, watch.remember(steps)) for watch in watches), (self, zero)]

    def _go_back(self, before: list[tuple[Any, Any]]) -> None:
        *watches, (_, (self._been_zero, self._was_zero)) = before
        for watch, remembered in watches:
            watch.go_back(remembered)

    # what is said

    def _alerts(self, step: int, block: _Block) -> list[Alert]:
        said: list[tuple[str, Judged | JudgedShift, LayerWatch | ShiftWatch, str]] = [
            ("gradient_norm", block.norm, self._norm, "norm {:+.3g} σ from its past, beside what "
             "all layers did"),
            ("gradient_peak", block.peak, self._peak, "largest element relative to the norm "
             "{:+.3g} σ from its past"),
            ("gradient_zeros", block.zeros, self._zeros, "share of zeros {:+.3g} σ from its past"),
            ("gradient_shift", block.shift, self._shift, "norm shifted and stays so: CUSUM "
             "{:+.3g} σ"),
        ]  # fmt: skip
        found: list[Alert] = []
        for detector, judged, watch, text in said:
            over, score = judged.over[0, 0], judged.score[0, 0]
            found += self._of_layers(step, detector, over, score, watch.threshold.value, text)
        if block.total.over.any():
            score = float(block.total.score[0, 0, 0])
            text = f"norm of all gradients together {score:+.3g} σ from its past"
            limit = self._total.threshold.value
            detail = {"text": text}
            found.append(Alert(step, "global_norm", None, "", score, limit, "suspect", detail))
        return found

    def _of_layers(
        self, step: int, detector: str, over: Bools, score: Floats, limit: float, text: str
    ) -> list[Alert]:
        layers = np.flatnonzero(over)
        if not layers.size:
            return []
        worst = layers[np.argsort(-np.abs(score[layers]), kind="stable")][:MOST_ALERTS]
        more = f", and {layers.size - worst.size} more layers" if layers.size > worst.size else ""
        return [
            Alert(
                step,
                detector,
                int(layer),
                self._names[layer],
                float(score[layer]),
                limit,
                "suspect",
                {"text": f"gradient's {text.format(score[layer])}{more}"},
            )
            for layer in worst
        ]
