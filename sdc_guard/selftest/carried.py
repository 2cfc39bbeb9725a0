"""Faults of memory between two steps: one bit of a parameter, a moment, a counter, a
checkpoint."""

from __future__ import annotations

from functools import partial

from ..archive.restore import load_checkpoint
from ..errors import CheckpointMismatch, CheckpointUnreadable
from ..inject.fault import Fault, Site
from ..inject.injector import Injector, flip_bit
from .expected import missed
from .line import Bench, Outcome, Trial
from .training import FAULT, LAYER, Parts, train

_SECTION = "detectors"
_KINDS: dict[Site, str] = {
    "weight": "param", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq", "step": "step"
}  # fmt: skip


def at_rest(site: Site, bench: Bench) -> Outcome:
    """One bit, drawn from a seed: named with tensor, element and bit in the same step."""
    injectors: list[Injector] = []

    def inject(parts: Parts) -> None:
        injector = Injector(parts.model, parts.optimizer, seed=1, run=parts.run)
        injectors.append(injector.add(Fault(site, FAULT, tensor=LAYER)))

    trained = train(bench.room(site), inject)
    (record,) = injectors[0].records
    found = trained.of("carried_digest")
    if not found:
        return missed("carried_digest", trained)
    detail = found[0].detail
    named = (
        found[0].step, found[0].layer_name, found[0].severity,
        detail["kind"], detail.get("index"), detail.get("bits"),
    )  # fmt: skip
    (word,) = record.touched
    injected = (FAULT, LAYER, "proven", _KINDS[site], word.index, word.bits)
    if len(found) > 1 or named != injected:
        return Outcome("FAIL", f"named {named} for {injected}", {"alerts": len(found)})
    where = f"{LAYER} {_KINDS[site]}, element {word.index}, bit {word.bits[0]}"
    return Outcome("PASS", f"carried_digest named {where} in the same step")


def checkpoint_on_disk(bench: Bench) -> Outcome:
    """One bit in a checkpoint's file: not loaded."""
    run = bench.room("checkpoint")

    def save(parts: Parts, step: int) -> None:
        if step == FAULT and parts.guard is not None:
            parts.guard.checkpoint({"model": parts.model, "optimizer": parts.optimizer}, step - 1)

    train(run, at_step=save)
    (folder,) = (run / "archive").glob("step=*")
    load_checkpoint(folder)  # sound: loads
    file = folder / "state.pt"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    try:
        load_checkpoint(folder)
    except (CheckpointMismatch, CheckpointUnreadable) as error:
        return Outcome("PASS", f"load_checkpoint refused it: {error.what}")
    return Outcome("FAIL", "load_checkpoint took a checkpoint with one flipped bit")


def checkpoint_on_its_way(bench: Bench) -> Outcome:
    """One bit of a weight between a step and its checkpoint: not called clean."""
    run = bench.room("on-its-way")

    def save(parts: Parts, step: int) -> None:
        if step == FAULT and parts.guard is not None:
            flip_bit(parts.parameter.data, 3, 5)
            parts.guard.checkpoint({"model": parts.model}, step - 1)

    train(run, at_step=save)
    from ..archive.manifest import Manifest

    (folder,) = (run / "archive").glob("step=*")
    manifest = Manifest.read(folder)
    if manifest.status == "clean":
        return Outcome("FAIL", "a checkpoint of other bits than were trained was called clean")
    return Outcome("PASS", f"called {manifest.status}: {manifest.reasons[0]}")


TRIALS = (
    Trial(_SECTION, "a bit of a parameter at rest", partial(at_rest, "weight")),
    Trial(_SECTION, "a bit of exp_avg at rest", partial(at_rest, "exp_avg")),
    Trial(_SECTION, "a bit of exp_avg_sq at rest", partial(at_rest, "exp_avg_sq")),
    Trial(_SECTION, "a bit of a step counter at rest", partial(at_rest, "step")),
    Trial(_SECTION, "a bit of a checkpoint on disk", checkpoint_on_disk),
    Trial(_SECTION, "a bit between step and checkpoint", checkpoint_on_its_way),
)
