"""Two traces of the same steps, compared bit by bit by SQL."""

from __future__ import annotations

from dataclasses import dataclass

from sdc_guard.store.reader import RunReader


@dataclass(frozen=True)
class TensorDifference:
    """A tensor whose digests differ; `layer` is its number in the original run."""

    kind: str
    layer: int
    name: str
    rank: int


@dataclass(frozen=True)
class StepDifference:
    """Everything that differs at one step.

    Attributes:
        step: the step.
        batch, loss, lr: whether the batch's hash, the loss, the learning rate differ.
        gradients: names of layers whose gradient measures differ.
        before, after: state that differs before and after the optimizer's update.
    """

    step: int
    batch: bool
    loss: bool
    lr: bool
    gradients: tuple[str, ...]
    before: tuple[TensorDifference, ...]
    after: tuple[TensorDifference, ...]


@dataclass(frozen=True)
class Comparison:
    """Two traces compared over the steps from `first` to `last`, both included.

    Attributes:
        steps: how many steps are in both.
        tensors: how many tensors per step are in both.
        missing: steps of the interval of which one of the two lacks the row or a digest.
        difference: the first step at which they differ, or None.
    """

    first: int
    last: int
    steps: int
    tensors: int
    missing: tuple[int, ...]
    difference: StepDifference | None


# Steps of which both traces hold the row and every digest that the replay, which is whole, holds
_STEPS_BOTH = """
    SELECT DISTINCT s.step FROM steps AS s JOIN other.steps AS o USING (step, rank)
    WHERE step BETWEEN $first AND $last AND step NOT IN (
        SELECT o.step
        FROM other.digests AS o JOIN other.layer_names AS m USING (layer)
        LEFT JOIN layer_names AS n USING (name)
        LEFT JOIN digests AS d
            ON d.layer = n.layer AND d.step = o.step AND d.phase = o.phase
            AND d.kind = o.kind AND d.rank = o.rank
        WHERE d.h IS NULL
    ) AND step IN (SELECT step FROM other.digests WHERE phase = 'after')
"""

_TENSORS_BOTH = """
    SELECT count(DISTINCT (d.kind, d.layer, d.rank))
    FROM digests AS d JOIN layer_names AS n USING (layer)
    JOIN other.layer_names AS m USING (name)
    JOIN other.digests AS o
        ON o.layer = m.layer AND o.step = d.step AND o.phase = d.phase
        AND o.kind = d.kind AND o.rank = d.rank
    WHERE d.step = $first
"""

# IS DISTINCT FROM, because NaN and NULL on both sides are equal here
_STEP_ROWS = """
    SELECT step, bool_or(s.batch_hash IS DISTINCT FROM o.batch_hash),
        bool_or(s.loss IS DISTINCT FROM o.loss), bool_or(s.lr IS DISTINCT FROM o.lr)
    FROM steps AS s JOIN other.steps AS o USING (step, rank)
    WHERE step BETWEEN $first AND $last
    GROUP BY step
    HAVING bool_or((s.batch_hash, s.loss, s.lr) IS DISTINCT FROM (o.batch_hash, o.loss, o.lr))
"""

_GRADIENTS = """
    SELECT l.step, n.name
    FROM layers AS l JOIN layer_names AS n USING (layer)
    JOIN other.layer_names AS m USING (name)
    JOIN other.layers AS o ON o.layer = m.layer AND o.step = l.step AND o.rank = l.rank
    WHERE l.step BETWEEN $first AND $last
        AND (l.norm, l.max_abs, l.mean_abs, l.nonfinite, l.zeros)
            IS DISTINCT FROM (o.norm, o.max_abs, o.mean_abs, o.nonfinite, o.zeros)
    ORDER BY l.step, l.layer
"""

_DIGESTS = """
    SELECT d.step, d.phase, d.kind, d.layer, n.name, d.rank
    FROM digests AS d JOIN layer_names AS n USING (layer)
    JOIN other.layer_names AS m USING (name)
    JOIN other.digests AS o
        ON o.layer = m.layer AND o.step = d.step AND o.phase = d.phase
        AND o.kind = d.kind AND o.rank = d.rank
    WHERE d.step BETWEEN $first AND $last
        AND (d.h, d.s1, d.s2) IS DISTINCT FROM (o.h, o.s1, o.s2)
    ORDER BY d.step, d.rank, d.layer, d.kind
"""


def compare(original: RunReader, replayed: RunReader, first: int, last: int) -> Comparison:
    """Compare the steps `first` to `last` of two runs.

    Args:
        original: the run; `replayed` is attached to it as the schema "other".
        replayed: the same steps again.
    """
    original.attach("other", replayed)
    span = {"first": first, "last": last}
    both = {row[0] for row in original.rows(_STEPS_BOTH, span)}
    tensors = original.rows(_TENSORS_BOTH, {"first": first})[0][0]
    missing = tuple(step for step in range(first, last + 1) if step not in both)
    difference = _first_difference(original, span)
    return Comparison(first, last, len(both), tensors, missing, difference)


def _first_difference(reader: RunReader, span: dict[str, int]) -> StepDifference | None:
    steps = {step: differ for step, *differ in reader.rows(_STEP_ROWS, span)}
    gradients = reader.rows(_GRADIENTS, span)
    digests = reader.rows(_DIGESTS, span)
    differing = [*steps, *(row[0] for row in gradients), *(row[0] for row in digests)]
    if not differing:
        return None
    step = min(differing)
    batch, loss, lr = steps.get(step, (False, False, False))

    def state(phase: str) -> tuple[TensorDifference, ...]:
        return tuple(
            TensorDifference(kind, layer, name, rank)
            for at, when, kind, layer, name, rank in digests
            if (at, when) == (step, phase)
        )

    names = tuple(dict.fromkeys(name for at, name in gradients if at == step))
    return StepDifference(step, batch, loss, lr, names, state("before"), state("after"))
