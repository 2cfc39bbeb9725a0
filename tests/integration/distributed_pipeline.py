"""Trainings in a pipeline. Each function is one scenario of `distributed_launch`."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from distributed_training import Here, Training, adam, batch
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

from sdc_guard import Guard

Told = dict[str, Any]


class Stages(Training):
    """A training whose passes are those of a pipeline."""

    schedule: ScheduleGPipe

    def _pass(self, step: int, part: int, guard: Guard | None) -> None:
        x = batch(step, part, 0)
        if self.here.rank == 0:
            self.schedule.step(x)
        else:
            self.schedule.step(target=torch.zeros_like(x))


def pipeline(here: Here) -> Told:
    """Two stages whose parameters have the same names, and four microbatches."""
    torch.manual_seed(here.rank)
    part = _stage()
    stage = PipelineStage(part, here.rank, here.world, torch.device("cpu"))
    training = Stages(here, part, adam(part), inner=nn.Sequential(_stage(), _stage()))
    training.together, training.weights = True, _of_all_stages
    training.schedule = ScheduleGPipe(stage, 4, loss_fn=nn.functional.mse_loss)
    return training()


class LateStages(Stages):
    """The same, but the stage is made after the guard."""

    def _pass(self, step: int, part: int, guard: Guard | None) -> None:
        if step == 0:
            stage = PipelineStage(self.model, self.here.rank, self.here.world, torch.device("cpu"))
            self.schedule = ScheduleGPipe(stage, 4, loss_fn=nn.functional.mse_loss)
        super()._pass(step, part, guard)


def pipeline_after_the_guard(here: Here) -> Told:
    torch.manual_seed(here.rank)
    part = _stage()
    return LateStages(here, part, adam(part))()


def _stage() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.Tanh())


def _of_all_stages(part: nn.Module) -> dict[str, torch.Tensor]:
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, part.state_dict())
    return {
        f"{rank}.{name}": value for rank, own in enumerate(parts) for name, value in own.items()
    }
