"""What the callbacks of `lightning.pytorch` and of `pytorch_lightning` have in common: all of it.

The two packages have the same hooks and separate base classes.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch

from ..guard import Guard
from .replaced import Replaced

_log = logging.getLogger("sdc_guard")


class GuardHooks:
    """Records a Lightning training with a Guard.

    With one optimizer guard step N is the N-th optimizer step: what it left behind is the
    checkpoint that Lightning names `step=N`, and `trainer.global_step` is N when it ends. A
    training resumed by `ckpt_path` goes on in the same run's folder with step N + 1.

    With several optimizers, which Lightning steps by manual optimization, each has a Guard and a
    run of its own, in the folders `optimizer=0`, `optimizer=1` and so on below `run`, in the order
    of `configure_optimizers`. Lightning counts the steps of all of them together; each Guard
    counts those of its own, from 1, and goes on after a resume by what the checkpoint holds. A
    loss belongs to the optimizer that steps next after its backward.

    The loss of a step is the one that `training_step` returned, the mean over the micro-batches
    of `accumulate_grad_batches`. Gradients are those before clipping, without the loss scale.

    Args:
        run: the run's folder. It has no default: Lightning's own folders are new at each resume.
        seal_checkpoints: whether each checkpoint is sealed when it is written. Every rank
            calls Guard.seal, and rank 0 writes the seal. Not with several
            optimizers, nor where it is written beside the training.
        guard_options: further arguments of Guard: policy, on_alert, shadow and so on.

    Attributes:
        guards: one Guard for each optimizer, of the training under way or of the last one.
    """

    def __init__(
        self, run: str | Path, *, seal_checkpoints: bool = True, **guard_options: Any
    ) -> None:
        super().__init__()
        self._seals = seal_checkpoints
        self._replaced: Replaced | None = None
        self.guards: list[Guard] = []
        self._run = Path(run)
        self._options = guard_options
        self._scaler: torch.amp.GradScaler | None = None
        self._batch: Any = None
        self._losses: list[tuple[torch.Tensor, Any]] = []  # of which the optimizer is not known yet
        self._counted: list[int] = []  # steps of each optimizer, as a checkpoint told
        self._ahead: int | None = 1  # of Lightning's count; None when a difference has been told

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Attach to the module and its optimizers.

        Raises:
            SdcGuardError: a guard cannot be made; see Guard.
        """
        for guard in self.guards:
            guard.close()  # of a training whose end was never told
        self._scaler = getattr(trainer.precision_plugin, "scaler", None)
        scaler = {} if self._scaler is None else {"scaler": self._scaler}
        optimizers, done = trainer.optimizers, self._steps_done(trainer)
        self._losses, self.guards = [], []
        for number, optimizer in enumerate(optimizers):
            run = self._run if len(optimizers) == 1 else self._run / f"optimizer={number}"
            options = {"first_step": done[number] + 1, **scaler, **self._options}
            self.guards.append(Guard(pl_module, optimizer, run=run, **options))
        self._ahead = self.guards[0].step - trainer.global_step if len(optimizers) == 1 else None
        self._seal_what_is_saved(trainer)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keep the batch at hand for its loss."""
        self._batch = batch

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: torch.Tensor) -> None:
        """Take the loss of a micro-batch."""
        loss = loss.detach().double()
        if self._scaler is not None:  # Lightning has scaled it already
            loss = loss / self._scaler.scale(torch.ones_like(loss))
        if pl_module.automatic_optimization:  # and has divided it by the number of micro-batches
            loss = loss * trainer.accumulate_grad_batches
        if len(self.guards) == 1:
            self.guards[0].observe(loss, self._batch)
            self._compare_counts(trainer)
        elif self.guards:
            self._losses.append((loss, self._batch))

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Give the losses since the last step to the optimizer that steps now."""
        losses, self._losses = self._losses, []
        for guard, its_optimizer in zip(self.guards, trainer.optimizers, strict=False):
            if its_optimizer is optimizer:
                for loss, batch in losses:
                    guard.observe(loss, batch)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Let go of the batch."""
        self._batch = None

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Write what is left and detach."""
        self._close()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Write what is left and detach."""
        self._close()

    def state_dict(self) -> dict[str, Any]:
        """For Lightning's checkpoints: the steps done by each of several optimizers."""
        return {"steps": self._steps()} if len(self.guards) > 1 else {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what `state_dict` gave."""
        self._counted = list(state_dict["steps"])

    def _seal_what_is_saved(self, trainer: Any) -> None:
        """Be told of each checkpoint: of a callback for them nobody is, before 2.6 at least."""
        if self._replaced is not None:
            self._replaced.undo()
            self._replaced = None
        if not self._seals or len(self.guards) != 1:
            return
        if "Async" in type(trainer.strategy.checkpoint_io).__name__:
            _log.warning(
                "SDC Guard: checkpoints are written beside the training, and not sealed: call "
                "Guard.seal when one is complete"
            )
            return
        self._replaced = Replaced(trainer, "save_checkpoint", self._save_checkpoint)

    def _save_checkpoint(self, inner: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        saved = inner(filepath, *args, **kwargs)
        if self.guards and "://" not in str(filepath):  # a copy of the trainer has none
            self.guards[0].seal(str(filepath), self.guards[0].step - 1)
        return saved

    def _steps_done(self, trainer: Any) -> list[int]:
        """Steps that each optimizer has behind it."""
        if len(trainer.optimizers) == 1:
            return [trainer.global_step]
        if trainer.global_step and len(self._counted) == len(trainer.optimizers):
            return self._counted
        return [0] * len(trainer.optimizers)

    def _compare_counts(self, trainer: Any) -> None:
        """Tell once when Lightning counts a step that its optimizer did not make.

        An overridden `optimizer_step` can do that, and a `training_step` that returns None.
        """
        if self._ahead is None or self.guards[0].step - trainer.global_step == self._ahead:
            return
        self._ahead = None
        _log.warning(
            "SDC Guard: Lightning counts %d steps, but the next step of the optimizer is %d; from "
            "here on the steps in the names of Lightning's checkpoints are not the guard's",
            trainer.global_step,
            self.guards[0].step,
        )

    def _steps(self) -> list[int]:
        for guard in self.guards:
            guard.flush()  # a step that a scaler skipped is counted by then
        return [guard.step - 1 for guard in self.guards]

    def _close(self) -> None:
        self._batch, self._losses = None, []
        if self._replaced is not None:
            self._replaced.undo()
            self._replaced = None
        for guard in self.guards:
            guard.close()
        if len(self.guards) > 1:
            self._counted = self._steps()

    def __getstate__(self) -> dict[str, Any]:
        """Without the guards: a copy, in another process perhaps, records nothing by itself."""
        return {
            **vars(self),
            "guards": [],
            "_scaler": None,
            "_batch": None,
            "_losses": [],
            "_replaced": None,
        }
