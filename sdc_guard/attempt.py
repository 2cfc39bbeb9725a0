"""Starting an attempt: who we are among the ranks, and what this run's folder already knows."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .detect.alert import Alert
from .errors import RunNotFound
from .forks import generation
from .ranks import Ranks
from .signals.buffers import Buffer, model_buffers
from .signals.environment import differences, environment_fingerprint
from .signals.layers import model_layers, written_by_forward
from .signals.placement import placement
from .signals.shadow import ShadowPass
from .signals.whereabouts import whereabouts
from .store.reader import RunReader
from .store.run_file import Attempt, Layer, RunFile, merge_layers

_log = logging.getLogger("sdc_guard")

_CHECKPOINTS = "archive/step=*"
_PROVEN = """
    SELECT opened, evidence FROM incidents WHERE opened < $step
        AND json_extract(evidence, '$.proven')::BOOLEAN ORDER BY opened LIMIT 1
"""


@dataclass(frozen=True)
class Place:
    """Where this process stands.

    Attributes:
        ranks: this process among them.
        attempt: number of this start, 1 for the first.
        parameters: the model's layers with the run's numbers, and their parameters.
        events: (kind, detail) to record at the first step.
        inherited: an alert if the state resumed from is under a proven incident already.
        generation: of this process; a fork that inherits the hooks must not write into this run.
        written_by_forward: ids of parameters that the model's forward writes to.
        buffers: the model's, if they are digested.
    """

    ranks: Ranks
    attempt: int
    parameters: list[tuple[Layer, torch.nn.Parameter]]
    events: list[tuple[str, str]]
    inherited: Alert | None
    generation: int
    written_by_forward: set[int]
    buffers: list[Buffer]

    @property
    def rank(self) -> int:
        """Rank of this process."""
        return self.ranks.rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.ranks.world_size

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
    *,
    digest_buffers: bool = False,
) -> Place:
    """Add this start to run.json, on rank 0, and learn of it on the other ranks.

    Raises:
        RunFormatError: the folder holds another model, or a damaged run.json.
        OSError: the folder cannot be written.
        UsageError: on another rank than 0, if rank 0 did not start the run.
    """
    ranks = Ranks(run)
    found = model_layers(model)
    layers = [layer for layer, _ in found]
    held = model_buffers(model) if digest_buffers else []
    buffers = [buffer.layer for buffer in held]

    def start() -> RunFile:
        now = _extend(_read(run), run, ranks.world_size).with_layers(layers, buffers)
        now = replace(
            now,
            resume=resume or now.resume,
            shadow={"batch_hash": shadow.batch_hash, "every": shadow_every} if shadow else None,
        )
        number = now.attempts[-1].attempt + 1 if now.attempts else 1
        environment = environment_fingerprint(optimizers, ranks.world_size, model)
        now = now.with_attempt(Attempt(number, first_step, time.time(), environment, digest_budget))
        now.write(run)
        return now

    now = ranks.add_layers(ranks.from_rank_0(start), layers, buffers)
    *earlier, attempt = now.attempts
    if ranks.rank == 0 and earlier:
        _tell_superseded(run, first_step, all_of_it=first_step <= earlier[0].first_step)
    written = written_by_forward(model)
    return Place(
        ranks=ranks,
        attempt=attempt.attempt,
        parameters=_numbered(found, now),
        events=[*_events(earlier, attempt, whereabouts(model)), *_not_carried(found, written)],
        inherited=_inherited(run, first_step) if earlier else None,
        generation=generation(),
        written_by_forward=written,
        buffers=_numbered_buffers(held, now),
    )


def _tell_superseded(run: Path, first_step: int, *, all_of_it: bool) -> None:
    """One line if a start makes an earlier one's steps, or checkpoints, count no more."""
    named = (folder.name.partition("=")[2].partition("-")[0] for folder in run.glob(_CHECKPOINTS))
    steps = sorted(int(step) for step in named if step.isdecimal() and int(step) >= first_step)
    what = f"{len(steps)} checkpoints, of steps {steps[0]} to {steps[-1]}" if steps else ""
    if len(steps) == 1:
        what = f"the checkpoint of step {steps[0]}"
    if all_of_it:
        _log.warning(
            "SDC Guard: %s holds a run already; starting at step %d supersedes it%s. After a "
            "resume give Guard(first_step=...), for a new run another folder",
            run,
            first_step,
            f" and {what}" if what else "",
        )
    elif what:
        _log.warning(
            "SDC Guard: %s: starting at step %d supersedes %s; they stay on disk, and are passed "
            "over where the newest clean one is looked for",
            run,
            first_step,
            what,
        )


def with_layers_of(place: Place, model: torch.nn.Module) -> Place:
    """The same place after parameters were added to the model or replaced.

    Raises:
        RunFormatError: a layer of the same name has another shape or dtype now.
        OSError: the folder cannot be written.
    """
    found = model_layers(model)
    layers = [layer for layer, _ in found]
    now = place.ranks.newest()
    if place.rank == 0:
        merge_layers(now.layers, layers)  # for its check
    held = model_buffers(model) if place.buffers else []
    now = place.ranks.add_layers(now, layers, [buffer.layer for buffer in held])
    return replace(
        place,
        parameters=_numbered(found, now),
        written_by_forward=written_by_forward(model),
        buffers=_numbered_buffers(held, now),
    )


def _numbered(
    found: list[tuple[Layer, torch.nn.Parameter]], run_file: RunFile
) -> list[tuple[Layer, torch.nn.Parameter]]:
    numbers = {layer.name: layer for layer in run_file.layers}
    return [(numbers[layer.name], parameter) for layer, parameter in found]


def _numbered_buffers(found: list[Buffer], run_file: RunFile) -> list[Buffer]:
    numbers = {layer.name: layer for layer in run_file.buffers}
    return [replace(buffer, layer=numbers[buffer.layer.name]) for buffer in found]


def _read(run: Path) -> RunFile | None:
    try:
        return RunFile.read(run)
    except RunNotFound:
        return None


def _extend(before: RunFile | None, run: Path, world_size: int) -> RunFile:
    if before is None:
        run.mkdir(parents=True, exist_ok=True)
        return RunFile(name=run.name, world_size=world_size, layers=())
    return replace(before, world_size=world_size)


def _events(
    earlier: list[Attempt], attempt: Attempt, here: dict[str, Any]
) -> list[tuple[str, str]]:
    began = json.dumps({"first_step": attempt.first_step, **here})
    if not earlier:
        return [("start", began)]
    events = [("restart", began)]
    changed = differences(earlier[-1].environment, attempt.environment)
    if changed:
        events.append(("environment change", json.dumps(changed)))
    return events


def _not_carried(
    found: list[tuple[Layer, torch.nn.Parameter]], written: set[int]
) -> list[tuple[str, str]]:
    names = {
        "written by forward": [layer.name for layer, p in found if id(p) in written],
        "in an unknown place of the whole": [
            layer.name for layer, p in found if placement(p).offset is None
        ],
    }
    said = {why: layers for why, layers in names.items() if layers}
    return [("not carried", json.dumps(said))] if said else []


def _inherited(run: Path, first_step: int) -> Alert | None:
    """An alert if a proven incident was open in what this attempt continues."""
    try:
        with RunReader(run) as reader:
            rows: list[Any] = reader.rows(_PROVEN, {"step": first_step})
        if not rows:
            return None
        opened, first = rows[0][0], json.loads(rows[0][1])["first"]
    except Exception as error:  # noqa: BLE001 - because a damaged record is no reason not to train
        told = " ".join(str(error).split())
        _log.warning("SDC Guard: earlier incidents of %s cannot be read: %s", run, told)
        return None
    text = f"resumed from a state under the incident of step {opened}: {first}"
    detail = {"text": text, "opened": opened}
    return Alert(first_step, "inherited", None, "", 1.0, 0.0, "proven", detail)
