"""The injector of a command that runs under `sdc-guard inject`: the Guard in it makes it.

SDC_GUARD_INJECT names the plan file, SDC_GUARD_INJECT_TOLD a folder where each process leaves a
note of what became of the plan, and SDC_GUARD_INJECT_AGAIN is set if faults fire again. Without
the first nothing of the injector is imported.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from ..errors import InjectionError

if TYPE_CHECKING:
    from .injector import Injector

PLAN_VARIABLE: Final = "SDC_GUARD_INJECT"
TOLD_VARIABLE: Final = "SDC_GUARD_INJECT_TOLD"
AGAIN_VARIABLE: Final = "SDC_GUARD_INJECT_AGAIN"

_attached: weakref.WeakSet[Injector] = weakref.WeakSet()


def injector_of_environment(
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    run: Path,
    first_step: int,
    count: Callable[[], int],
) -> Injector | None:
    """The injector that this process was started with, if any; of several guards the first has it.

    Raises:
        InjectionError: the plan cannot be done to this training.
    """
    path = os.environ.get(PLAN_VARIABLE)
    if not path or any(injector.attached for injector in _attached):
        return None
    from .injector import rank_here
    from .journal import journal_of

    rank = rank_here()
    journal = journal_of(run, rank)
    size = journal.stat().st_size if journal.is_file() else 0
    try:
        injector = _made(Path(path), model, optimizers, run, first_step, count)
    except InjectionError as error:
        _tell(rank, refused=str(error))
        raise
    except Exception as error:  # because the command has to hear of it, whatever it is
        refused = InjectionError(f"{type(error).__name__}: {error}", where=path)
        _tell(rank, refused=str(refused))
        raise refused from error
    _attached.add(injector)
    _tell(rank, journal=str(journal), size=size)
    return injector


def _made(
    path: Path,
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    run: Path,
    first_step: int,
    count: Callable[[], int],
) -> Injector:
    from .injector import Injector
    from .plan_file import read_plan

    plan = read_plan(path)
    again = bool(os.environ.get(AGAIN_VARIABLE))
    injector = Injector(
        model, optimizers, seed=plan.seed, run=run, first_step=first_step, again=again, count=count
    )
    try:
        for fault in plan.faults:
            injector.add(fault)
    except BaseException:
        injector.close()
        raise
    return injector


def _tell(rank: int, **content: Any) -> None:
    """Leave a note for the command that started this process."""
    folder = os.environ.get(TOLD_VARIABLE)
    if folder and Path(folder).is_dir():
        note = json.dumps({"rank": rank, **content})
        (Path(folder) / f"{rank:05d}-{os.getpid()}.json").write_text(note, encoding="utf-8")
