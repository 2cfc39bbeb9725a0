"""Starting an attempt: who we are among the ranks, and what this run's folder already knows."""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from .detect.alert import Alert
from .errors import RunNotFound, UsageError
from .signals.environment import differences, environment_fingerprint
from .signals.layers import model_layers, written_by_forward
from .signals.shadow import ShadowPass
from .store.reader import RunReader
from .store.run_file import Attempt, Layer, RunFile, merge_layers

_log = logging.getLogger("sdc_guard")


@dataclass(frozen=True)
class Place:
    """Where this process stands.

    Attributes:
        rank: of this process.
        world_size: number of ranks.
        attempt: number of this start, 1 for the first.
        parameters: the model's layers with the run's numbers, and their parameters.
        events: (kind, detail) to record at the first step.
        inherited: an alert if the state resumed from is under a proven incident already.
        owner: process id; a fork that inherits the hooks must not write into this run.
        written_by_forward: ids of parameters that the model's forward writes to.
    """

    rank: int
    world_size: int
    attempt: int
    parameters: list[tuple[Layer, torch.nn.Parameter]]
    events: list[tuple[str, str]]
    inherited: Alert | None
    owner: int
    written_by_forward: set[int]

    @property
    def layer_names(self) -> dict[int, str]:
        """Layer number to name."""
        return {layer.id: layer.name for layer, _ in self.parameters}


def register_attempt(
    run: Path,
    model: torch.nn.Module,
    optimizers: list[torch.optim.Optimizer],
    first_step: int,
    resume: str | None,
    shadow: ShadowPass | None,
    shadow_every: int,
    digest_budget: float | None,
) -> Place:
    """Add this start to run.json, on rank 0, and tell the other ranks.

    Raises:
        RunFormatError: the folder holds another model, or a damaged run.json.
        OSError: the folder cannot be written.
    """
    rank, world_size = _ranks()
    found = model_layers(model)
    environment = environment_fingerprint(optimizers[0], world_size)
    before = _read(run)
    if rank == 0:
        now = _extend(before, run, [layer for layer, _ in found], world_size)
        now = replace(
            now,
            resume=resume or now.resume,
            shadow={"batch_hash": shadow.batch_hash, "every": shadow_every} if shadow else None,
        )
        number = now.attempts[-1].attempt + 1 if now.attempts else 1
        now = now.with_attempt(Attempt(number, first_step, time.time(), environment, digest_budget))
        now.write(run)
    now = _from_rank_0(now if rank == 0 else None)
    if before and before.attempts and first_step <= before.attempts[0].first_step:
        _log.warning(
            "SDC Guard: %s holds a run already; starting at step %d supersedes it. After a "
            "resume give Guard(first_step=...), for a new run another folder",
            run,
            first_step,
        )
    written = written_by_forward(model)
    return Place(
        rank=rank,
        world_size=world_size,
        attempt=now.attempts[-1].attempt,
        parameters=_numbered(found, now),
        events=[*_events(before, now.attempts[-1]), *_not_carried(found, written)],
        inherited=_inherited(run, first_step) if before else None,
        owner=os.getpid(),
        written_by_forward=written,
    )


def with_layers_of(place: Place, run: Path, model: torch.nn.Module) -> Place:
    """The same place after parameters were added to the model or replaced.

    Raises:
        RunFormatError: a layer of the same name has another shape or dtype now.
        OSError: the folder cannot be written.
    """
    found = model_layers(model)
    now = RunFile.read(run)
    merged = merge_layers(now.layers, [layer for layer, _ in found])
    if place.rank == 0 and merged != now.layers:
        replace(now, layers=merged).write(run)
    parameters = _numbered(found, replace(now, layers=merged))
    return replace(place, parameters=parameters, written_by_forward=written_by_forward(model))


def _numbered(
    found: list[tuple[Layer, torch.nn.Parameter]], run_file: RunFile
) -> list[tuple[Layer, torch.nn.Parameter]]:
    numbers = {layer.name: layer for layer in run_file.layers}
    return [(numbers[layer.name], parameter) for layer, parameter in found]


def _ranks() -> tuple[int, int]:
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def _read(run: Path) -> RunFile | None:
    try:
        return RunFile.read(run)
    except RunNotFound:
        return None


def _extend(before: RunFile | None, run: Path, layers: list[Layer], world_size: int) -> RunFile:
    if before is None:
        run.mkdir(parents=True, exist_ok=True)
        return RunFile(name=run.name, world_size=world_size, layers=tuple(layers))
    return replace(before, world_size=world_size, layers=merge_layers(before.layers, layers))


def _from_rank_0(now: RunFile | None) -> RunFile:
    if dist.is_available() and dist.is_initialized():
        box = [now]
        dist.broadcast_object_list(box)
        now = box[0]
    if now is None:
        raise UsageError(
            "this is one of several ranks, and torch.distributed is not initialised",
            next_step="call init_process_group before making the Guard",
        )
    return now


def _events(before: RunFile | None, attempt: Attempt) -> list[tuple[str, str]]:
    if before is None or not before.attempts:
        return [("start", json.dumps({"first_step": attempt.first_step}))]
    events = [("restart", json.dumps({"first_step": attempt.first_step}))]
    changed = differences(before.attempts[-1].environment, attempt.environment)
    if changed:
        events.append(("environment change", json.dumps(changed)))
    return events


def _not_carried(
    found: list[tuple[Layer, torch.nn.Parameter]], written: set[int]
) -> list[tuple[str, str]]:
    names = [layer.name for layer, parameter in found if id(parameter) in written]
    return [("not carried", json.dumps({"written by forward": names}))] if names else []


def _inherited(run: Path, first_step: int) -> Alert | None:
    """An alert if a proven incident was open in what this attempt continues."""
    with RunReader(run) as reader:
        rows: list[Any] = reader.rows(
            "SELECT opened, evidence FROM incidents WHERE opened < $step"
            " AND json_extract(evidence, '$.proven')::BOOLEAN ORDER BY opened LIMIT 1",
            {"step": first_step},
        )
    if not rows:
        return None
    opened, evidence = rows[0]
    text = f"resumed from a state under the incident of step {opened}: "
    detail = {"text": text + json.loads(evidence)["first"], "opened": opened}
    return Alert(first_step, "inherited", None, "", 1.0, 0.0, "proven", detail)
