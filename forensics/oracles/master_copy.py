"""A model in 16 bits against the copy in float32 that its optimizer keeps of it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import torch

from ..content import Content

_HALVES: Final = (torch.bfloat16, torch.float16)
_MASTER: Final = re.compile(r"(^|[._/])(fp32|float32|master)([._/]|$)|master_params?")
_WORDS: Final = re.compile(
    r"(fp32|float32|master)(_from_fp16)?(_params?|_weights?|_groups?)?[._/]?"
)
# of the copy's dtype: a script that rounds by chance (stochastic rounding) is off by one place
_PLACES: Final = 1


def copies_that_differ(content: Content) -> Iterator[str]:
    """A line for each weight that is not its float32 copy, rounded.

    Pairs are found by their names: `master.layer.weight` or `fp32.layer.weight`, of the same shape
    as a `layer.weight` of 16 bits.

    Raises:
        CheckpointUnreadable: a tensor cannot be read.
    """
    halves = {name: one for name, one in content.tensors.items() if one.dtype in _HALVES}
    for name, stored in content.tensors.items():
        if stored.dtype is not torch.float32 or not _MASTER.search(name):
            continue
        plain = _WORDS.sub("", name)
        half = next((key for key in halves if _ends_alike(key, plain)), None)
        if half is None or halves[half].shape != stored.shape:
            continue
        copy, master = halves[half].read(), stored.read()
        step = torch.finfo(copy.dtype).eps * master.abs() + torch.finfo(copy.dtype).tiny
        off = (copy.float() - master).abs() > _PLACES * step
        if count := int(off.sum()):
            place = int(off.reshape(-1).to(torch.uint8).argmax())
            yield f"{half}: {count:,} elements are not {name}, rounded (element {place})"


def _ends_alike(one: str, other: str) -> bool:
    """Whether the shorter of two names is the end of the longer, from a dot on."""
    short, long = sorted((one, other), key=len)
    return bool(short) and (long == short or long.endswith(f".{short}"))
