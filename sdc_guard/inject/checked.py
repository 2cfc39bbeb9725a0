"""What is wrong with a fault whatever it is aimed at, said by the field that is wrong."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
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


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _wholes(value: object) -> bool:
    return isinstance(value, (tuple, list)) and all(map(_whole, value))


def _number(value: object) -> bool:
    """Whether a float can hold it: an int may be larger."""
    if not isinstance(value, (int, float)):
        return False
    try:
        float(value)
    except OverflowError:
        return False
    return True


def _or_open(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or fits(value)


def _shown(value: object) -> str:
    try:
        text = repr(value)
    except ValueError:  # thousands of digits
        return "of too many digits"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


_SHOWN = 40  # characters of a value that is refused
_TYPES: dict[str, tuple[str, Callable[[object], bool]]] = {
    "step": ("a whole number", _whole),
    "tensor": ("a name, or None", lambda value: value is None or isinstance(value, str)),
    "index": (
        "a whole number, or one for each dimension",
        lambda value: value is None or _whole(value) or _wholes(value),
    ),
    "bit": ("a whole number", _or_open(_whole)),
    "bits": ("a sequence of whole numbers", _or_open(_wholes)),
    "value": ("a number that a float can hold", _or_open(_number)),
    "exponent": ("a whole number", _or_open(_whole)),
    "height": ("a whole number", _whole),
    "width": ("a whole number", _whole),
    "period": ("a whole number", _whole),
    "until": ("a whole number", _or_open(_whole)),
    "probability": ("a number", _number),
    "rank": ("a whole number", _or_open(_whole)),
}
_WITH_EFFECT = ("activation", "output_gradient", "batch")


def check_fault(fault: Fault) -> None:
    """Refuse a fault that cannot be meant.

    Raises:
        InjectionError: names the field, its value, and what is allowed.
    """
    for name, (words, fits) in _TYPES.items():
        value = getattr(fault, name)
        if not fits(value):
            raise InjectionError(f"{name} {_shown(value)}", next_step=words)
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
