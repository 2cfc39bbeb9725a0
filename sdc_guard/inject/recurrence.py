"""Whether a fault is due at a step: pure, and the same whenever it is asked."""

from __future__ import annotations

from .fault import Draw, Fault

_CERTAIN = 2**63


def due(fault: Fault, step: int, rank: int, seed: int, key: str) -> bool:
    """Whether `fault` meets this rank at this step.

    Args:
        key: of the fault, so that two intermittent ones draw apart.
    """
    if fault.rank not in (None, rank):
        return False
    if fault.recurrence == "once":
        return step == fault.step
    if step < fault.step or (fault.until is not None and step > fault.until):
        return False
    if fault.recurrence == "persistent":
        return True
    chance = Draw(seed, fault.site, step, rank).below(_CERTAIN, f"chance of {key}")
    return chance < fault.probability * _CERTAIN


def over(fault: Fault, step: int) -> bool:
    """Whether it is never due any more from `step` on."""
    last = fault.step if fault.recurrence == "once" else fault.until
    return last is not None and step > last
