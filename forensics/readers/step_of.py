"""The step that a checkpoint is of: by what it holds, and by its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sdc_guard.errors import CheckpointUnreadable

from ..content import StoredTensor

# as trainers call it: plain loops, Lightning, DeepSpeed, Megatron, nanoGPT and its kin
_KEYS: Final = (
    "step", "global_step", "global_steps", "iteration", "iter", "iter_num", "step_num",
    "current_step", "train_step", "num_steps", "num_updates",
)  # fmt: skip
_HOLDERS: Final = (
    "state", "train_state", "training_state", "trainer_state", "trainer", "progress", "meta",
    "extra_state", "metadata", "info", "args_and_state",
)  # fmt: skip
_STEP = re.compile(r"(?<![a-z])(?:global_?)?(?:steps?|iter(?:ation)?s?|it)[^0-9a-z]{0,2}(\d+)")
_EPOCH = re.compile(r"(?<![a-z])(?:epochs?|ep|e)[^0-9a-z]{0,2}(\d+)(?:\.\d+)?")
# numbers that count something else: a version, a rank, a rate, a score
_OTHER = re.compile(
    r"(?<![a-z])(?:v|ver|version|rank|[mtpd]p|seed|gpu|lr|loss|acc\w*|val\w*|bs|of)[^0-9a-z]{0,2}"
    r"\d+(?:\.\d+)?|\d*\.\d+|\d+(?=[a-z])"
)
FROM_NAME: Final = "its step is the one in its name"
_MOST_DIGITS: Final = 18  # below 2^63, as stores keep steps
_NUMBER = re.compile(r"\d+")


def step_inside(
    numbers: Mapping[str, object], tensors: Mapping[str, StoredTensor] | None = None
) -> int | None:
    """The step among a checkpoint's plain numbers, or in a tensor of one element.

    Args:
        numbers: by dotted path, as in `Content`.
        tensors: likewise.
    """
    for name in (*_KEYS, *(f"{holder}.{key}" for holder in _HOLDERS for key in _KEYS)):
        found = _whole(numbers.get(name))
        if found is not None:
            return found
    for name in _KEYS:
        tensor = (tensors or {}).get(name)
        if tensor is not None and tensor.numel == 1:
            try:
                return _whole(tensor.read().item())
            except CheckpointUnreadable:
                return None
    return None


def _whole(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    whole = value == value and abs(value) < 2**53 and value == int(value) and value >= 0
    return int(value) if whole else None


@dataclass(frozen=True)
class Named:
    """A number in a name; `is_step` False where it may count something else, as epochs."""

    number: int
    is_step: bool = True


def step_in_name(name: str) -> Named | None:
    """The step that a name says: after a word for it, or else its last number.

    A number too long for a step is none: it would be taken for another one if it were cut.
    """
    text = name.lower()
    if found := _STEP.findall(text):
        return _named(found[-1])
    rest = _OTHER.sub(" ", _EPOCH.sub(" ", text))
    if found := _NUMBER.findall(rest):
        return _named(found[-1])
    if found := _EPOCH.findall(text):
        return _named(found[-1], is_step=False)
    return None


def _named(digits: str, is_step: bool = True) -> Named | None:
    plain = digits.lstrip("0") or "0"
    return None if len(plain) > _MOST_DIGITS else Named(int(plain), is_step)


@dataclass(frozen=True)
class Settled:
    """The step to sort by, what the name says where that is another, and notes on it."""

    step: int
    named_step: int | None = None
    notes: tuple[str, ...] = ()


def settle(inside: int | None, named: Named | None) -> Settled:
    """What a checkpoint holds counts before its name, and the name before nothing."""
    if inside is None and named is None:
        return Settled(0, notes=("neither its name nor what it holds says its step",))
    if inside is None:
        assert named is not None
        what = FROM_NAME if named.is_step else "its step is its epoch's"
        return Settled(named.number, notes=(what,))
    if named is None or not named.is_step or named.number == inside:
        return Settled(inside)
    note = f"the name says step {named.number}, the content says step {inside}"
    return Settled(inside, named.number, (note,))
