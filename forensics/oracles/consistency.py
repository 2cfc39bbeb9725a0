"""Whether a checkpoint fits its neighbours and itself. It suspects and does not prove.

What it looks at is cheap: steps, counters, and tensors until the first that differs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sdc_guard.errors import CheckpointUnreadable
from sdc_guard.store.trace_reader import TraceReader

from ..checkpoint import Checkpoint
from ..content import Content
from ..same_bits import all_same
from ..tensor_roles import moments_of, weights_of
from .counted_steps import out_of_step, ranks_disagree
from .judgement import Judgement
from .neighbours import Neighbours
from .race import race

# their reasons say what is missing, or what the gate thought: not what contradicts what
_TELL_OTHERWISE: Final = ("hf-trainer", "sdc-guard")


class ConsistencyOracle:
    """Judges a checkpoint by what contradicts it, in it and beside it.

    - its reader's doubts: a shard newer than the metadata, shards of two saves;
    - two checkpoints of one step, one of them under the name of another step;
    - ranks' files that say different steps;
    - an optimizer whose own count of steps is off by what neither neighbour's is;
    - weights with the bits of the checkpoint before: stale saves;
    - moments with the bits of the checkpoint before, under weights that moved;
    - with a guard's trace: tensors with the digests of another step than the one that it says.

    Args:
        candidates: by step.
        trace: of the run, if a guard recorded it.
        near: their contents, if they are opened elsewhere, too.
    """

    name = "consistency"
    proves = False
    persists = False
    cost: float | None = None

    def __init__(
        self,
        candidates: Sequence[Checkpoint],
        trace: TraceReader | None = None,
        *,
        near: Neighbours | None = None,
    ) -> None:
        self._near = near or Neighbours(candidates)
        self._trace = trace
        self.concurrent = trace is None  # one reader of the trace, for one thread

    def judge(self, checkpoint: Checkpoint) -> Judgement:
        """Corrupt by the first contradiction, as a suspicion."""
        content = self._near.content(checkpoint)
        if isinstance(content, str):
            return Judgement("untestable", content)
        try:
            found = next(self._contradictions(checkpoint, content), None)
        except CheckpointUnreadable as error:
            return Judgement("untestable", error.what)
        if found is not None:
            return Judgement("corrupt", found)
        beside = self._near.before(checkpoint)
        if not beside:
            return Judgement("clean", "nothing in it contradicts itself")
        return Judgement("clean", f"nothing contradicts it, nor the one of step {beside[0].step}")

    def _contradictions(self, one: Checkpoint, content: Content) -> Iterator[str]:
        if one.reasons and one.format not in _TELL_OTHERWISE:
            yield "; ".join(one.reasons)
        for other in self._near.of_the_same_step(one):
            if one.named_step is not None:
                yield (
                    f"its name says step {one.named_step} and it holds step {one.step}, "
                    f"as {other.path.name} does"
                )
        yield from ranks_disagree(content)
        yield from out_of_step(one, content, self._near)
        if self._trace is not None:
            yield from race(one, content, self._trace)
        yield from self._stale(one, content)

    def _stale(self, one: Checkpoint, content: Content) -> Iterator[str]:
        before = self._near.before(one)
        if not before:
            return
        earlier = self._near.content(before[0])
        if isinstance(earlier, str):
            return
        weights, moments = weights_of(content), moments_of(content)
        if all_same(weights, weights_of(earlier)):
            steps = [before[0].step, *self._same_before(before[0], earlier)]
            named = ", ".join(str(step) for step in sorted(steps))
            what = "saves of a state that no longer changes, or no training between them"
            if moments and all_same(moments, moments_of(earlier)):
                yield f"weights and moments have the bits of step {named}: {what}"
            else:
                yield f"all weights have the bits of step {named}: {what}"
        elif moments and all_same(moments, moments_of(earlier)):
            step = before[0].step
            yield f"the optimizer's moments have the bits of step {step}, the weights moved"

    def _same_before(self, one: Checkpoint, content: Content) -> Iterator[int]:
        """Steps of those before with the same weights, without a gap."""
        for other in self._near.before(one, count=8):
            earlier = self._near.content(other)
            if isinstance(earlier, str) or not all_same(weights_of(content), weights_of(earlier)):
                return
            yield other.step
