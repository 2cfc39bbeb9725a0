"""Which column of somebody's log is the loss, the gradient norm, the step."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final

from ..errors import LogUnreadable, UsageError
from ..shown import shown

# How loggers name them, the surest first. Compared without case, with every run of other signs
# than letters and digits as one underscore: "train/loss", "lm loss" and "Loss-Scale" are found.
_STEP: Final = (
    "step", "global_step", "steps", "train_global_step", "trainer_global_step", "train_step",
    "iteration", "iter", "iterations", "global_iteration", "num_updates", "update", "updates", "it",
)  # fmt: skip
_STEP_AT_LAST: Final = ("batch", "batch_idx", "i")
_LOSS: Final = (
    "loss", "train_loss", "training_loss", "train_loss_step", "loss_train", "lm_loss",
    "train_lm_loss", "lm_loss_training_lm_loss", "total_loss", "loss_total", "train_total_loss",
    "train_cross_entropy_loss", "train_ce_loss", "ce_loss", "cross_entropy_loss", "nll_loss",
    "actor_loss", "policy_loss", "actor_pg_loss", "train_loss_epoch",
)  # fmt: skip
_VALIDATION: Final = ("val_loss", "validation_loss", "valid_loss", "eval_loss", "test_loss")
_GRAD_NORM: Final = (
    "grad_norm", "gradient_norm", "gradnorm", "train_grad_norm", "total_grad_norm",
    "global_grad_norm", "train_gradient_norm", "grad_norm_grad_norm", "optim_total_grad_norm",
    "gnorm", "train_gnorm", "grad_2_0_norm_total", "grad_norm_total", "grad_norm_global",
    "l2_norm_grad_global", "actor_grad_norm", "grad_l2_norm", "grad_norm_step", "norm",
)  # fmt: skip
_LR: Final = (
    "learning_rate", "lr", "train_learning_rate", "train_lr", "learning_rate_learning_rate",
    "actor_lr", "lr_adamw", "lr_adam", "lr_sgd",
)  # fmt: skip
_LOSS_SCALE: Final = (
    "loss_scale", "grad_scale", "train_loss_scale", "loss_scale_loss_scale", "amp_scale", "scale",
)  # fmt: skip
_RUN_SIGN: Final = " - "  # between a run's name and its metric's in exports of wandb
_RUN: Final = ("run", "run_id", "run_name", "experiment", "attempt", "rank")


@dataclass(frozen=True)
class Asked:
    """Columns that the user named; None for those that are to be found."""

    loss: str | None = None
    grad_norm: str | None = None
    step: str | None = None


@dataclass(frozen=True)
class Columns:
    """The columns that are read, by their own names."""

    step: str | None
    loss: str | None
    grad_norm: str | None
    lr: str | None
    loss_scale: str | None
    run: str | None

    def as_dict(self) -> dict[str, str | None]:
        """By role."""
        return asdict(self)

    @property
    def validation(self) -> bool:
        """Whether the loss is one of validation, for want of another."""
        return self.loss is not None and _plain(self.loss) in _VALIDATION


def choose(names: Iterable[str], asked: Asked, where: str) -> Columns:
    """Choose among the columns of a log.

    Raises:
        UsageError: a column that was asked for is not there, or is to be two things.
        LogUnreadable: neither a loss nor a gradient norm is known by its name.
    """
    there = list(dict.fromkeys(names))
    for name in (asked.loss, asked.grad_norm, asked.step):
        if name is not None and name not in there:
            raise UsageError(f"no column {name!r}; there are {_listed(there)}", where=where)
    if asked.loss is None and asked.grad_norm is None:
        _refuse_runs_side_by_side(there, where)
    found = Columns(
        asked.step or _first(there, _STEP) or _first(there, _STEP_AT_LAST),
        asked.loss or _first(there, _LOSS) or _first(there, _VALIDATION),
        asked.grad_norm or _first(there, _GRAD_NORM),
        _first(there, _LR), _first(there, _LOSS_SCALE), _first(there, _RUN),
    )  # fmt: skip
    if found.loss is None and found.grad_norm is None:
        raise LogUnreadable(
            f"no loss and no gradient norm among its columns: {_listed(there)}",
            where=where, next_step="name one by --loss COLUMN or --grad-norm COLUMN",
        )  # fmt: skip
    _refuse_twice(found, where)
    return found


def _refuse_twice(found: Columns, where: str) -> None:
    roles: dict[str, str] = {}
    for role in ("step", "loss", "grad_norm"):
        name = found.as_dict()[role]
        if name is not None and roles.setdefault(name, role) != role:
            one, other = (text.replace("_", "-") for text in (roles[name], role))
            raise UsageError(
                f"one column, {name!r}, would be both --{one} and --{other}", where=where,
                next_step=f"name another by --{one} COLUMN or --{other} COLUMN",
            )  # fmt: skip


def _refuse_runs_side_by_side(there: list[str], where: str) -> None:
    """Exports of wandb's charts have a column for each run: "calm-sun-3 - train/loss"."""
    losses = [name for name in there if _RUN_SIGN in name and _plain(name) in _LOSS]
    if len(losses) > 1:
        raise LogUnreadable(
            f"a column of losses for each of several runs: {_listed(losses)}", where=where,
            next_step="choose one by --loss COLUMN",
        )  # fmt: skip


def known(name: str) -> bool:
    """Whether this is the name of any column that is read."""
    every = (*_STEP, *_LOSS, *_VALIDATION, *_GRAD_NORM, *_LR, *_LOSS_SCALE)
    return _plain(name) in every


def _plain(name: str) -> str:
    metric = name.rpartition(_RUN_SIGN)[2]
    return re.sub(r"[^0-9a-z]+", "_", metric.lower()).strip("_")


def _first(there: list[str], wanted: tuple[str, ...]) -> str | None:
    plain: dict[str, str] = {}
    for name in there:
        plain.setdefault(_plain(name), name)
    return next((plain[one] for one in wanted if one in plain), None)


def _listed(names: list[str], most: int = 12) -> str:
    listed = ", ".join(shown(name[:40]) for name in names[:most])
    return f"{listed} and {len(names) - most} more" if len(names) > most else listed or "none"
