"""Why steps that are known to be clean do not replay to the same bits.

A replay convicts only if it repeats what is sound. Where it does not, the reason is looked for in
what the two recorded: settings first, for they change any bit; then what a resume has to restore,
in the order in which a step uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from sdc_guard.signals.environment import differences

from .compare import StepDifference
from .sizes import Pair, constant, described, grows

# What does not change a bit by itself. The host does not either: its processor is a name of its own
_HARMLESS: Final = frozenset({"host", "python", "driver", "device_ids", "libc"})
_HARMLESS_PACKAGES: Final = frozenset(
    {"sdc_guard_torch", "duckdb", "pyarrow", "safetensors"}  # what records, and what stores
)
_ADVICE: Final = {
    "threads": "torch.set_num_threads of both must be the same",
    "threads_env": "the same OMP_NUM_THREADS and MKL_NUM_THREADS",
    "world_size": "as many ranks as the run had",
    "devices": "replay on devices of the same kind",
    "cpu": "replay on a processor of the same kind",
    "cpu_capability": "replay on a processor of the same kind",
    "precision": "the same torch.set_float32_matmul_precision and allow_tf32",
    "packages": "the versions that the run had",
    "torch_build": "the build of torch that the run had",
    "deterministic": "torch.use_deterministic_algorithms alike in both",
}


@dataclass(frozen=True)
class Kept:
    """What a checkpoint's file holds for a resume; None where its format does not tell.

    Attributes:
        generator: a random generator's state.
        buffers: names of floating-point tensors of the model that are no parameters.
    """

    generator: bool | None = None
    buffers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mismatch:
    """Steps that should have replayed to the same bits and did not.

    Attributes:
        first: the first step replayed.
        found: what differs first.
        run, replay: the environments.
        losses: of run and replay, from `first` on.
        repeats: whether two replays of the same steps agree with each other; None if unknown.
        kept: what the checkpoint holds.
    """

    first: int
    found: StepDifference
    run: dict[str, Any]
    replay: dict[str, Any]
    losses: Sequence[Pair]
    repeats: bool | None = None
    kept: Kept = Kept()

    @property
    def settings(self) -> dict[str, list[Any]]:
        """Settings that differ and may change the bits of a step, by name."""
        return settings_that_differ(self.run, self.replay)


@dataclass(frozen=True)
class Reason:
    """Why, and what to do about it."""

    text: str
    next_step: str


def because(mismatch: Mismatch) -> Reason:
    """The likeliest reason, with the size of the difference."""
    setting, restored = _setting(mismatch), _not_restored(mismatch)
    if restored is not None and setting is not None:
        restored = Reason(f"{restored.text}; besides, {setting.text}", restored.next_step)
    reason = restored or setting or _constant(mismatch) or _computed(mismatch)
    at = next((pair for pair in mismatch.losses if pair.apart), None)
    size = "" if at is None else f"; at step {at.step} {described(at)}"
    return Reason(reason.text + size, reason.next_step)


def settings_that_differ(run: dict[str, Any], replay: dict[str, Any]) -> dict[str, list[Any]]:
    """Settings of two environments that may change the bits of a step, by name."""
    changed = {n: pair for n, pair in differences(run, replay).items() if n not in _HARMLESS}
    packages = changed.pop("packages", None)
    if packages is not None:
        before, now = packages
        names = [name for name in before if name not in _HARMLESS_PACKAGES]
        if names:
            changed["packages"] = [{n: part[n] for n in names} for part in (before, now)]
    return changed


def setting_texts(changed: dict[str, list[Any]]) -> list[str]:
    """Each setting that differs, in words."""
    return [f"{name} {before!r} → {now!r}" for name, (before, now) in changed.items()]


def settings_explain(mismatch: Mismatch) -> bool:
    """Whether other settings are enough to explain a difference that nothing else calibrates.

    They are where the very first step computes other bits, and where equal steps are followed by
    a difference that grows from rounding. They change no batch, and no state before a first step.
    """
    found, at_once = mismatch.found, mismatch.found.step == mismatch.first
    if not mismatch.settings or found.batch:
        return False
    return not found.before if at_once else grows(mismatch.losses)


def _setting(mismatch: Mismatch) -> Reason | None:
    changed = mismatch.settings
    if not changed:
        return None
    advice = [_ADVICE[name] for name in changed if name in _ADVICE]
    text = "; ".join(setting_texts(changed))
    return Reason(f"the settings differ: {text}", "; ".join(advice) or "set them as the run had")


def _constant(mismatch: Mismatch) -> Reason | None:
    replayed = [pair.replay for pair in mismatch.losses]
    recorded = [pair.run for pair in mismatch.losses]
    if constant(replayed) == constant(recorded):
        return None
    who = "the replay gives" if constant(replayed) else "the run gave"
    text = f"{who} the same loss at each step, whatever the batch"
    return Reason(
        f"{text}: an output that does not depend on its input",
        "does this build of torch compute on this device? sdc-guard selftest asks it",
    )


def _not_restored(mismatch: Mismatch) -> Reason | None:
    """What a resume has to restore and no setting changes."""
    found = mismatch.found
    if found.before:
        names = ", ".join(f"{item.kind} {item.name}" for item in found.before[:3])
        return Reason(
            f"the state is not the one that was saved: {names} differ before step {found.step}",
            "restore the state of model and optimizer, each into the same object",
        )
    if found.step == mismatch.first and (buffers := _only_buffers(found)):
        return Reason(
            f"buffers are not restored: after the first step buffer {', '.join(buffers[:3])} "
            "differ, and nothing else",
            "load the model's buffers with its parameters",
        )
    if found.batch:
        where = "" if len(found.ranks) != 1 else f" on rank {found.ranks[0]}"
        return Reason(
            f"the batches differ{where} from step {found.step} on: the data position is not "
            "restored",
            "restore the position of the loader and the seed of its order",
        )
    if found.lr:
        return Reason("the learning rates differ", "restore the scheduler")
    if found.scale:
        return Reason("the loss scales differ", "restore the gradient scaler")
    return None


def _only_buffers(found: StepDifference) -> list[str]:
    """Names of the buffers that differ after a step, if nothing else does."""
    other = found.batch or found.loss or found.gradients or found.before or found.lr
    buffers = [item.name for item in found.after if item.kind == "buffer"]
    return buffers if not other and len(buffers) == len(found.after) else []


def _computed(mismatch: Mismatch) -> Reason:
    """State, batch and settings are equal, and what was computed is not."""
    found, at_once = mismatch.found, mismatch.found.step == mismatch.first
    if mismatch.repeats is False or (not at_once and grows(mismatch.losses)):
        return _not_deterministic(mismatch)
    if found.loss and at_once:
        return _hidden(mismatch)
    return Reason(
        f"step {found.step} computes other bits from the same state and batch",
        "restore generators, buffers and whatever else a step reads; deterministic kernels",
    )


def _not_deterministic(mismatch: Mismatch) -> Reason:
    on = "" if mismatch.replay.get("deterministic") else ", and deterministic mode is off"
    how = (
        "two replays of the same steps differ from each other"
        if mismatch.repeats is False
        else "the first steps are equal and what differs later grows from rounding"
    )
    return Reason(
        f"{how}{on}: kernels that add in another order each time (atomics)",
        "turn on deterministic mode in both: torch.use_deterministic_algorithms(True)",
    )


def _hidden(mismatch: Mismatch) -> Reason:
    """The first step after the resume gives another loss from the same parameters and batch."""
    kept = mismatch.kept
    if kept.generator is False:
        return Reason(
            "random generators are not restored: the checkpoint holds no generator's state, and "
            "the first step gives another loss from the same state and batch",
            "save torch.get_rng_state() (and the device's), and set it on resume",
        )
    named = f" ({', '.join(kept.buffers[:3])})" if kept.buffers else ""
    return Reason(
        "the first step gives another loss from the same state and batch: generators (dropout), "
        f"or buffers{named}, are not restored",
        "set the generators' state last, right before the first step; load the model's buffers",
    )
