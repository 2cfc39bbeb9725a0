"""A guard as a callback of the Hugging Face Trainer."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from ..guard import Guard
from .replaced import Replaced

try:
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState
    from transformers import TrainingArguments as Arguments

    from .accelerate import unwrapped_optimizer  # the Trainer needs Accelerate itself
except ImportError as error:
    raise ImportError(
        'the Hugging Face Trainer is not installed: pip install ".[huggingface]" in a clone'
    ) from error

_log = logging.getLogger("sdc_guard")


class SdcGuardCallback(TrainerCallback):
    """Records a Trainer's training with a Guard.

    Guard step N is the N-th optimizer step, so what it left behind is the Trainer's
    `checkpoint-N`, and `state.global_step` is N when it ends. A training resumed from
    `checkpoint-N` goes on in the same run's folder with step N + 1.

    The loss of a step is what the Trainer logs for it with `logging_steps=1`, but as it was: a NaN
    that `logging_nan_inf_filter` keeps out of the log is recorded. Gradients are those before
    clipping.

    Args:
        run: the run's folder; by default `sdc_guard` in the Trainer's output folder.
        seal_checkpoints: whether each `checkpoint-N` is sealed when it is written. Every rank calls
            Guard.seal, and rank 0 writes the seal.
        guard_options: further arguments of Guard: policy, on_alert, shadow and so on.

    Attributes:
        guard: the Guard of the training under way or, after its end, of the last one.
    """

    def __init__(
        self,
        run: str | Path | None = None,
        *,
        seal_checkpoints: bool = True,
        **guard_options: Any,
    ) -> None:
        self.guard: Guard | None = None
        self._seals = seal_checkpoints
        self._run = run
        self._options = guard_options
        self._replaced: list[Replaced] = []
        self._trainings = 0

    def on_train_begin(
        self, args: Arguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Attach to the model and the optimizer.

        Raises:
            SdcGuardError: the guard cannot be made; see Guard.
        """
        self._detach()  # from a training whose end was never told
        self.guard = Guard(
            kwargs["model"],
            unwrapped_optimizer(kwargs["optimizer"]),
            run=self._run or Path(args.output_dir) / "sdc_guard",
            **{
                "first_step": state.global_step + 1,
                **_scaler(kwargs["optimizer"]),
                **self._options,
            },
        )
        trainer = _training_trainer()
        if trainer is None:
            _log.warning("SDC Guard: no Trainer found, so losses and batches are not recorded")
            return
        self._trainings += 1
        step = functools.partial(self._training_step, self._trainings)
        self._replaced = [Replaced(trainer, "training_step", step)]
        if hasattr(trainer, "_run_epoch"):
            self._replaced.append(Replaced(trainer, "_run_epoch", self._run_epoch))

    def on_save(
        self, args: Arguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Seal the checkpoint: all of it is written by now."""
        if not self._seals or self.guard is None:
            return
        folder = _output_folder(args, self._replaced) / f"checkpoint-{state.global_step}"
        self.guard.seal(folder, state.global_step)

    def on_train_end(
        self, args: Arguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write what is left and detach."""
        self._detach()

    def _detach(self) -> None:
        for replaced in self._replaced:
            replaced.undo()
        self._replaced = []
        if self.guard is not None:
            self.guard.close()

    def _training_step(
        self,
        training: int,
        inner: Callable[..., Any],
        model: Any,
        inputs: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """The Trainer's forward and backward of one micro-batch, in the n-th training."""
        # entries may be added to the inputs, or popped
        batch = dict(inputs) if isinstance(inputs, Mapping) else inputs
        loss = inner(model, inputs, *args, **kwargs)
        if self._replaced and self.guard is not None and training == self._trainings:
            # The Trainer has divided it by the number of micro-batches, or by the items in all of
            # them; the guard records the mean over the micro-batches.
            trainer = self._replaced[0].owner
            micro_batches = getattr(trainer, "current_gradient_accumulation_steps", 1)
            self.guard.observe(loss.double() * micro_batches, batch)
        return loss

    def _run_epoch(self, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The Trainer tells callbacks of no exception, so it is met here on its way out."""
        try:
            return inner(*args, **kwargs)
        except BaseException:
            self._detach()
            raise

    def __getstate__(self) -> dict[str, Any]:
        """Without the guard: a copy, in another process perhaps, records nothing by itself."""
        return {**vars(self), "guard": None, "_replaced": []}


def _output_folder(args: Arguments, replaced: list[Replaced]) -> Path:
    """Where the Trainer writes its checkpoints: a folder of its own for each trial of a search."""
    trainer = replaced[0].owner if replaced else None
    of_trial = getattr(trainer, "_get_output_dir", None)
    trial = getattr(trainer, "_trial", None)
    return Path(args.output_dir if of_trial is None or trial is None else of_trial(trial=trial))


def _scaler(optimizer: Any) -> dict[str, Any]:
    scaler = getattr(optimizer, "scaler", None)
    return {} if scaler is None else {"scaler": scaler}


def _training_trainer() -> Any:
    """The Trainer whose `train` is running.

    Callbacks are given all parts of a Trainer, but not the Trainer, and only its `training_step`
    knows the loss of each micro-batch: a model's own is another one under label smoothing, a
    loss function, or an overridden `compute_loss`. So it is looked up in the frames that called.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer):
            return owner
        frame = frame.f_back
    return None
