"""Two traces of the same steps, compared bit by bit by SQL."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from sdc_guard.store.trace_reader import TraceReader

from . import compare_sql as sql


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
        gradients: names of layers whose gradient measures or digests differ.
        before, after: state that differs before and after the optimizer's update.
        scale, skipped: whether the loss scale differs, and whether the update was skipped.
        ranks: the ranks on which the earliest of these differs.
        wrong: gradients whose digests differ, where both traces have them.
        gradients_digested: whether both have them.
    """

    step: int
    batch: bool
    loss: bool
    lr: bool
    gradients: tuple[str, ...]
    before: tuple[TensorDifference, ...]
    after: tuple[TensorDifference, ...]
    scale: bool = False
    skipped: bool = False
    ranks: tuple[int, ...] = ()
    wrong: tuple[TensorDifference, ...] = ()
    gradients_digested: bool = False

    @property
    def first_tensors(self) -> tuple[str, tuple[TensorDifference, ...]]:
        """The phase and the tensors that the fault hit first, as far as digests tell."""
        if self.before:
            return "before", self.before
        if self.wrong and not (self.batch or self.loss):
            return "before", self.wrong
        return "after", self.after


@dataclass(frozen=True)
class Comparison:
    """Two traces compared over the steps from `first` to `last`, both included.

    Attributes:
        steps: how many steps are in both.
        tensors: how many tensors the state has in the replay.
        missing: steps of the interval of which one of the two lacks the row, or what it should
            hold. What the original did not digest by plan is not missing.
        difference: the first step at which they differ, or None.
        compared, possible: digests that are in both, and that could be.
        whole_before, whole_after: steps before and after whose update the whole state, parameters
            and the optimizer's moments, is in both.
        not_restored: state that the replay began with and that is not the one that the step
            before `first` had left in the original.
        kinds: of tensors that both have digests of.
    """

    first: int
    last: int
    steps: int
    tensors: int
    missing: tuple[int, ...]
    difference: StepDifference | None
    compared: int
    possible: int
    whole_before: frozenset[int]
    whole_after: frozenset[int]
    not_restored: tuple[TensorDifference, ...]
    kinds: frozenset[str]

    @property
    def watched(self) -> float:
        """The share of the possible comparisons of digests that were made."""
        return self.compared / self.possible if self.possible else 1.0

    def known_up_to(self, step: int) -> int:
        """The last step before `step` that is known to have left the whole state equal.

        Only meaningful up to the first difference. Without any other it is the step before the
        first: the replay starts from what that one left.
        """
        after = [n for n in self.whole_after if n < step]
        before = [n - 1 for n in self.whole_before if n < step]
        return max(*after, *before, self.first - 1, self.first - 1)


def compare(original: TraceReader, replayed: TraceReader, first: int, last: int) -> Comparison:
    """Compare the steps `first` to `last` of two runs.

    Args:
        original: the run; `replayed` is attached to it as the schema "other".
        replayed: the same steps again, every tensor digested at every step.
    """
    original.attach("other", replayed)
    span = {"first": first, "last": last}
    both = {row[0] for row in original.rows(sql.STEPS_BOTH, span)}
    counts = original.rows(sql.DIGESTS_BOTH, span)
    # only of a replay that digests everything is it known what everything is
    every = all(item.digest_budget is None for item in replayed.run_file.attempts)
    return Comparison(
        first,
        last,
        steps=len(both),
        tensors=original.rows(sql.STATE, span)[0][0],
        missing=tuple(step for step in range(first, last + 1) if step not in both),
        difference=_first_difference(original, span),
        compared=sum(row[2] for row in counts),
        possible=sum(row[3] for row in counts),
        whole_before=frozenset(_whole(counts, "before") if every else ()),
        whole_after=frozenset(_whole(counts, "after") if every else ()),
        not_restored=tuple(
            TensorDifference(*row) for row in original.rows(sql.NOT_RESTORED, {"first": first})
        ),
        kinds=frozenset(row[0] for row in original.rows(sql.KINDS_BOTH, span)),
    )


def _whole(counts: list[Any], phase: str) -> set[int]:
    """The steps of which every digest of a phase is in both."""
    return {step for step, at, compared, possible in counts if (at, compared) == (phase, possible)}


def _first_difference(reader: TraceReader, span: dict[str, int]) -> StepDifference | None:
    steps = {step: differ for step, *differ in reader.rows(sql.STEP_ROWS, span)}
    gradients = reader.rows(sql.GRADIENTS, span)
    digests = reader.rows(sql.DIGESTS, span)
    differing = [*steps, *(row[0] for row in gradients), *(row[0] for row in digests)]
    if not differing:
        return None
    step = min(differing)
    batch, loss, lr, scale, skipped, ranks = steps.get(step, (False,) * 5 + ([],))
    here = [row[1:] for row in gradients if row[0] == step]

    def state(phase: str) -> tuple[TensorDifference, ...]:
        return tuple(
            TensorDifference(*where) for at, when, *where in digests if (at, when) == (step, phase)
        )

    found, after = state("before"), state("after")
    before = tuple(item for item in found if item.kind != "grad")
    wrong = tuple(item for item in found if item.kind == "grad")
    # what a rank computed by itself tells more than what was reduced from all of them
    local = [rank for _, rank, scope in here if scope != "reduced"]
    earliest: Iterable[int] = (
        [item.rank for item in before]
        or ranks
        or local
        or [rank for _, rank, _ in here]
        or [item.rank for item in wrong]
        or [item.rank for item in after]
    )
    return StepDifference(
        step,
        batch,
        loss,
        lr,
        gradients=tuple(dict.fromkeys([x[0] for x in here] + [x.name for x in wrong])),
        before=before,
        after=after,
        scale=scale,
        skipped=skipped,
        ranks=tuple(sorted(set(earliest))),
        wrong=wrong,
        gradients_digested=bool(reader.rows(sql.GRADIENT_DIGESTS, {"step": step})[0][0]),
    )
