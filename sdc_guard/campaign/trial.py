"""One trial: the steps of a twin once more, with one fault, watched by a guard."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

from ..archive.manifest import Manifest
from ..archive.save import STATE_FILE
from ..errors import InjectionError
from ..inject.fault import Draw, Fault, InjectionRecord, Touched
from ..inject.injector import Injector
from ..plain_json import plain
from .clean import Window
from .file_fault import damage_file, file_effect, plain_load, proof
from .guarded import attach, folder_in
from .judge import compare_states, effect, ratios
from .plan import Trial
from .rows import Row, Rows, trial_rows
from .trace import first_difference, read_trace
from .training import build

_TOLD: Final = 64  # words of a fault that are kept one by one


@dataclass(frozen=True)
class _Trained:
    """What the training of a trial left.

    Attributes:
        hashes: of each tensor of the state after each step.
        records: of the injector.
        checkpoint: folder of the one that was saved at the end; None if that failed.
        errors: that the guard counted.
    """

    hashes: dict[int, dict[str, str]]
    records: list[InjectionRecord]
    checkpoint: Path | None
    errors: int


def run_trial(trial: Trial, window: Window, root: Path) -> Rows:
    """Run a trial.

    Args:
        trial: what to do.
        window: the snapshot of its twin.
        root: folder for its temporary files, which are gone afterwards.

    Returns:
        its rows by table.

    Raises:
        InjectionError: the fault cannot be injected there.
        Exception: whatever the training with the fault raises.
    """
    first, last = trial.snapshot + 1, trial.snapshot + trial.after
    with folder_in(root) as folder:
        done = _train(trial, window, folder)
        trace = read_trace(folder, first, last)
        found = _damage(trial, done.checkpoint) if trial.site == "file" else {}
        found |= _checkpoint(folder, done.checkpoint)
    names = {name: layer for layer, (name, _) in trace.names.items()}
    states = compare_states(done.hashes, window.hashes)
    ratio = ratios(trace, window.trace, first if trial.fault is None else trial.fault.step)
    replay = first_difference(trace, window.trace)
    row: Row = {
        **head(trial),
        "status": "done",
        "effect": None if trial.fault is None else effect(states, ratio),
        **_hit(done.records, names),
        "first_differs": states.first,
        "differing_first": 0 if states.first is None else states.counts[states.first],
        "differing_last": states.counts[last],
        "norm_ratio": ratio.norm,
        "loss_ratio": ratio.loss,
        "replay_step": replay and replay.step,
        "replay_what": replay and ", ".join(replay.what),
        "guard_errors": done.errors,
        "audit_verdict": trial.fault and trace.audits.get(trial.fault.step),
        **found,
    }
    return trial_rows(trial.number, row, trace, states.counts)


def failed_rows(trial: Trial, reason: str) -> Rows:
    """The rows of a trial that did not come to its end."""
    return {"trials": [{**head(trial), "status": "failed", "error": reason}]}


def head(trial: Trial) -> Row:
    """What is known of a trial before it runs."""
    return {
        "trial": trial.number,
        "model": trial.model,
        "seed": trial.seed,
        "snapshot": trial.snapshot,
        "site": trial.site,
        "mix": trial.mix,
        "kind": trial.kind,
        "fault_step": trial.fault and trial.fault.step,
        "fault": trial.fault and json.dumps(plain(asdict(trial.fault)), sort_keys=True),
        "audited": trial.audited,
    }


def _train(trial: Trial, window: Window, folder: Path) -> _Trained:
    first, last = trial.snapshot + 1, trial.snapshot + trial.after
    training = build(trial.model, trial.seed)
    training.restore(window.state)
    hashes: dict[int, dict[str, str]] = {}
    with ExitStack() as attached:
        guard = attached.enter_context(
            attach(
                training, folder, first_step=first, digests=True,
                audited=trial.audited, sensor=window.sensor,
            )
        )  # fmt: skip
        # after the guard, and so before it: see Injector
        injector = Injector(training.model, training.optimizer, seed=trial.draws, first_step=first)
        attached.enter_context(injector)
        if trial.fault is not None and trial.site != "file":
            injector.add(_aimed(trial.fault, trial.draws, injector, window.modules))
        for step in range(first, last + 1):
            training.step(guard)
            hashes[step] = training.hashes()
        checkpoint = guard.checkpoint(training.state(), last)
    if injector.missed:
        raise InjectionError(f"not injected: {injector.missed[0].reason}")
    return _Trained(hashes, injector.records, checkpoint, guard.health.errors)


def _aimed(fault: Fault, draws: int, injector: Injector, called: Sequence[str]) -> Fault:
    """The fault, on a module that runs if it is of a module: each as often.

    A model may hold modules of which only the weight is used.
    """
    if fault.site not in ("activation", "output_gradient") or fault.tensor is not None:
        return fault
    names = [name for name in injector.scope(fault.site).sizes if name in called]
    return replace(
        fault, tensor=names[Draw(draws, fault.site, fault.step, 0).below(len(names), "module")]
    )


def _hit(records: Sequence[InjectionRecord], layers: dict[str, int]) -> Row:
    """What the injector did, and to which layers: a parameter, or those of a module."""
    if not records:
        return {"fired": False, "changed": False, "words": 0, "bits": 0, "layers_hit": []}
    name = records[0].tensor
    module = name.partition(":")[0]
    hit = [number for layer, number in layers.items() if layer == name]
    hit = hit or [number for layer, number in layers.items() if layer.startswith(f"{module}.")]
    return {**_touched([word for record in records for word in record.touched]),
            "tensor": name, "layers_hit": sorted(hit)}  # fmt: skip


def _touched(words: Sequence[Touched]) -> Row:
    changed = [word for word in words if word.before != word.after]
    return {
        "fired": True,
        "changed": bool(changed),
        "words": len(changed),
        "bits": sum(len(word.bits) for word in changed),
        "touched": json.dumps([[w.index, w.before, w.after] for w in words[:_TOLD]]),
    }


def _checkpoint(folder: Path, checkpoint: Path | None) -> Row:
    if checkpoint is None:
        return {"checkpoint_status": None}
    sealed = Manifest.read(checkpoint)
    bad, reason = proof(checkpoint)
    return {
        "checkpoint_status": sealed.status,
        "checkpoint_reason": "; ".join(sealed.reasons),
        "manifest": bad,
        "manifest_reason": reason,
    }


def _damage(trial: Trial, checkpoint: Path | None) -> dict[str, Any]:
    if trial.fault is None or checkpoint is None:
        return {}
    path = checkpoint / STATE_FILE
    before = plain_load(path)
    touched = damage_file(path, trial.fault, trial.draws)
    return {
        **_touched(touched),
        "tensor": STATE_FILE,
        "layers_hit": [],
        "effect": file_effect(before, plain_load(path)),
    }
