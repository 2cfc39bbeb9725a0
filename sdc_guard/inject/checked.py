"""What is wrong with a fault whatever it is aimed at, said by the field that is wrong."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import get_args

from ..errors import InjectionError
from .fault import CHANGES, PATTERNS, RECURRENCES, SITES, Effect, Fault, Sampling

_ALLOWED: dict[str, tuple[str, ...]] = {
    "site": SITES,
    "change": CHANGES,
    "pattern": PATTERNS,
    "recurrence": RECURRENCES,
    "sampling": get_args(Sampling),
    "effect": get_args(Effect),
}
_WITH_EFFECT = ("activation", "output_gradient", "batch")


def check_fault(fault: Fault) -> None:
    """Refuse a fault that cannot be meant.

    Raises:
        InjectionError: names the field, its value, and what is allowed.
    """
    for name, allowed in _ALLOWED.items():
        value = getattr(fault, name)
        if value not in allowed:
            raise InjectionError(f"no {name} {value!r}", next_step=f"one of {', '.join(allowed)}")
    if fault.step < 0:
        raise InjectionError(f"no step {fault.step}", next_step="steps count from 0")
    if fault.rank is not None and fault.rank < 0:
        raise InjectionError(f"no rank {fault.rank}", next_step="ranks count from 0")
    _check_recurrence(fault)
    _check_bits(fault)
    for name in ("height", "width", "period"):
        if getattr(fault, name) < 1:
            raise InjectionError(f"{name} {getattr(fault, name)}", next_step="1 or more")
    if fault.effect == "memory" and fault.site not in _WITH_EFFECT:
        raise InjectionError(
            f'effect "memory" of {fault.site}', next_step=f"only for {', '.join(_WITH_EFFECT)}"
        )


def _check_recurrence(fault: Fault) -> None:
    if not 0 < fault.probability <= 1:
        raise InjectionError(
            f"no probability {fault.probability}", next_step="above 0, and at most 1"
        )
    if fault.until is not None and fault.until < fault.step:
        raise InjectionError(
            f"until {fault.until} is before step {fault.step}", next_step="leave it out for no end"
        )
    if fault.recurrence != "intermittent" and fault.probability != 1:
        raise InjectionError(
            f'probability {fault.probability} of a fault that is "{fault.recurrence}"',
            next_step='only for recurrence "intermittent"',
        )
    if fault.recurrence == "once" and fault.until is not None:
        raise InjectionError(
            'until of a fault that is "once"',
            next_step='recurrence "persistent" or "intermittent"',
        )


def _check_bits(fault: Fault) -> None:
    if fault.bit is not None and fault.bits is not None:
        raise InjectionError("both bit and bits", next_step="bit is short for bits of one")
    if fault.bits is not None and (not fault.bits or len(set(fault.bits)) < len(fault.bits)):
        raise InjectionError(f"bits {list(fault.bits)}", next_step="at least one, none twice")


def key_of(fault: Fault, seed: int) -> str:
    """What tells a planned fault from others, in a journal that several processes wrote to."""
    content = json.dumps([seed, asdict(fault)], sort_keys=True).encode()
    return hashlib.blake2b(content, digest_size=8).hexdigest()
