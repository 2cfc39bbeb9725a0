"""The moment at which a checkpoint is saved, or sealed: its step, and where the training stands."""

from __future__ import annotations

from dataclasses import dataclass

from .attempt import Place
from .collector import Collector
from .recorder import Recorder


@dataclass(frozen=True)
class Moment:
    """A moment between two steps.

    Attributes:
        step: the script's number of the step.
        newest: the guard's own number of the newest step, None before the first.
        place: of this process, for the layers' names.
        collector: of the state's tensors.
    """

    step: int
    newest: int | None
    place: Place
    collector: Collector

    def complete_digests(self, recorder: Recorder) -> None:
        """Digest what the budget left out, so that every saved byte has its digest."""
        if self.newest is not None and not self.collector.digests_all:
            rest = self.collector.missing_from(set(recorder.recorded()))
            recorder.state_at_rest(self.newest, rest.keys, rest.rows.cpu())

    def another_label(self) -> str:
        """What is said of a checkpoint that has another number than the newest step."""
        assert self.newest is not None
        return (
            f"labelled step {self.step}, but the trace is at step {self.newest}: "
            f"give Guard(first_step=...) {self.step - self.newest:+d}"
        )


STATE_NOT_LEFT = "the state is not the one that the last step left: not in the trace"
NO_STEP = "no step was recorded before this checkpoint"
