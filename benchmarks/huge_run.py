"""A run of thousands of layers and tens of thousands of steps, for a look at the dashboard.

A mixture of experts' names, a decaying loss, norms of all layers at every step. At one step one
layer's norm is a thousand times too large, and the sensor told it; later the loss jumped and came
back, and that was told, too. Both incidents are statistics'; nothing is proven.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from dashboard_heatmap import write
from dashboard_run import write_digests
from numpy.typing import NDArray
from trace_rows import step_columns

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sdc_guard.store.run_file import Attempt, Layer, RunFile
from sdc_guard.store.sealing import seal_run
from sdc_guard.store.writer import Health, Writer

_EXPERTS: Final = 38
_PROJECTIONS: Final = ("gate_proj", "up_proj", "down_proj")
_EVERY: Final = 500  # steps from checkpoint to checkpoint
_LONG: Final = 6  # steps that the loss is off
_LIMIT: Final = 6.2  # of both detectors here, in their own units


@dataclass(frozen=True)
class Huge:
    """What there is to be found: the step and the number of the layer, and where the loss jumps."""

    step: int
    layer: int
    name: str
    loss_step: int


def names(layers: int) -> list[str]:
    """Names as long as those of large models, `layers` of them: 125 a block."""
    block = [
        "input_layernorm.weight",
        *(f"self_attn.{part}_proj.weight" for part in "qkvo"),
        "post_attention_layernorm.weight",
        *(
            f"mlp.experts.{expert}.{part}.weight"
            for expert in range(_EXPERTS)
            for part in _PROJECTIONS
        ),
        "mlp.gate.weight",
        *(f"mlp.shared_expert.{part}.weight" for part in _PROJECTIONS),
        "mlp.shared_expert_gate.weight",
    ]
    return [
        f"model.layers.{number // len(block)}.{block[number % len(block)]}"
        for number in range(layers)
    ]


def planted(layers: int, steps: int) -> Huge:
    """Where it is, of a run of so many layers and steps."""
    layer = layers // 3
    return Huge(steps * 2 // 3, layer, names(layers)[layer], steps * 9 // 10)


def make(run: Path, layers: int, steps: int, tensors: int = 50) -> Huge:
    """The run's files.

    Args:
        run: a folder that is not there yet.
        layers: of the model.
        steps: 0 to `steps` - 1; layers × steps rows of norms.
        tensors: that are digested before and after each step.
    """
    found = planted(layers, steps)
    write(run, layers, steps, (found.step, found.layer), seal=False)
    about = [Layer(at, name, (), (8, 8), "float32", 64) for at, name in enumerate(names(layers))]
    RunFile(run.name, 1, tuple(about), (Attempt(1, 0, 1.7e9),)).write(run)
    write_digests(run, steps, min(tensors, layers))
    _rest(run, steps, found)
    seal_run(run, at_least=1)
    for path in (run / "trace").glob("*/rank=*/seg-*.parquet"):
        path.unlink()  # no reader began before
    return found


def losses(steps: int, jump: int) -> NDArray[np.float64]:
    """Training losses: a power law with noise, and a jump that decays within a few steps."""
    number = np.arange(steps)
    noise = np.random.default_rng(0).normal(0.0, 0.02, steps)
    since = number - jump
    off = np.where(since >= 0, 6.0 * np.exp(-np.maximum(since, 0) / 2.0), 0.0)
    found: NDArray[np.float64] = 2.0 + 8.0 / (1.0 + number / 150.0) ** 0.7 + noise + off
    return found


def _rest(run: Path, steps: int, found: Huge) -> None:
    health = Health()
    writer = Writer(run, 0, health)
    loss = losses(steps, found.loss_step)
    norm = 0.4 + 0.1 * loss
    norm[found.step] *= 30
    writer.append("steps", **{**step_columns(range(steps)), "loss": loss, "grad_norm": norm})
    for step in range(0, steps, 100):
        held = float(loss[step])
        writer.append("shadow", attempt=1, step=step, loss=held, repeat_loss=held, seconds=0.1)
    for step in range(_EVERY, steps, _EVERY):
        writer.append("checkpoints", **_checkpoint(step, found))
    _tell(writer, 1, found.step, [found.step], "gradient_norm", 44.0, found)
    off = list(range(found.loss_step, min(found.loss_step + _LONG, steps)))
    _tell(writer, 2, found.loss_step, off, "loss", 9.1, None)
    writer.close()
    if health.dropped or health.errors:
        raise RuntimeError(health.last_error)


def _checkpoint(step: int, found: Huge) -> dict[str, Any]:
    suspect = step >= found.loss_step
    return {
        "attempt": 1,
        "step": step,
        "path": f"archive/step={step:06d}",
        "format": "torch",
        "bytes": 140 * 10**9,
        "status": "suspect" if suspect else "clean",
        "reason": f"incident open since step {found.loss_step}: loss" if suspect else "",
    }


def _tell(
    writer: Writer,
    number: int,
    opened: int,
    steps: list[int],
    detector: str,
    score: float,
    at: Huge | None,
) -> None:
    """An incident with its alerts; of one layer it is closed again, of the loss it stays open."""
    what = f"norm of {at.name}" if at else "loss"
    text = f"the {what} is +{score:g} σ from its past"
    for step in steps:
        writer.append(
            "alerts",
            attempt=1,
            step=step,
            detector=detector,
            score=score,
            threshold=_LIMIT,
            severity="suspect",
            detail=json.dumps({"text": text}),
            **({"layer": at.layer} if at else {}),
        )
    where = f"{detector} in {at.name}" if at else detector
    evidence = {
        "alerts": len(steps),
        "detectors": [detector],
        "proven": False,
        "first": f"step {opened}: {where}: {text}",
        "layers": [at.name] if at else [],
        "ranks": [],
        "first_step": steps[0],
        "last_step": steps[-1],
    }
    row = {"attempt": 1, "incident": number, "opened": opened, "verdict": "undetermined"}
    row["evidence"] = json.dumps(evidence)
    writer.append("incidents", step=opened, **row)
    if at:
        writer.append("incidents", step=opened + 50, closed=opened + 50, **row)
