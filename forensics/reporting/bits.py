"""The bits of a located element, with what each is part of."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import torch

from sdc_guard.inject.formats import FORMATS

from ..locate import value_of
from .facts import Bit, LocatedElement, Part

# moments may be wider than the parameter that they belong to
_WIDER: Final = ("float32", "float64")


def located_elements(
    tensors: Iterable[Mapping[str, Any]], dtypes: Mapping[str, str]
) -> tuple[LocatedElement, ...]:
    """The tensors whose element is located, bit by bit; others, and damaged ones, are left out.

    Args:
        tensors: as a result stores them.
        dtypes: layer to torch dtype, by their names.
    """
    found = (_element(tensor, dtypes.get(str(tensor.get("name")))) for tensor in tensors)
    return tuple(one for one in found if one is not None)


def _element(tensor: Mapping[str, Any], layer: str | None) -> LocatedElement | None:
    try:
        index = int(tensor["index"])
        before, after = (int(str(tensor[key]), 16) for key in ("before", "after"))
    except (KeyError, TypeError, ValueError):
        return None
    if min(before, after) < 0 or max(before, after) >= 1 << 64:
        return None
    value = tensor.get("before_value")
    dtype = _dtype(before, after, value, layer)
    return LocatedElement(
        kind=str(tensor.get("kind")),
        name=str(tensor.get("name")),
        index=index,
        dtype=dtype,
        before=f"0x{before:x}",
        after=f"0x{after:x}",
        before_value=_value(before, dtype, value),
        after_value=_value(after, dtype, tensor.get("after_value")),
        bits=bits_of(before, after, dtype),
    )


def _dtype(before: int, after: int, value: Any, layer: str | None) -> str | None:
    """The dtype by which the stored bits have the stored value; without a value the layer's."""
    for name in (layer, *_WIDER):
        kind = getattr(torch, name or "", None)
        form = FORMATS.get(kind) if isinstance(kind, torch.dtype) else None
        if name is None or form is None or form.element is None:
            continue
        if max(before, after) >> form.width:
            continue
        name = str(form.element).removeprefix("torch.")
        if value is None or str(value_of(before, name)) == str(value):
            return name
    return None


def _value(bits: int, dtype: str | None, stored: Any) -> str | None:
    if stored is not None:
        return str(stored)
    return None if dtype is None else str(value_of(bits, dtype))


def bits_of(before: int, after: int, dtype: str | None) -> tuple[Bit, ...]:
    """The bits of a word before and after, from the highest to the lowest.

    Args:
        before, after: as unsigned numbers.
        dtype: of the word, by name; None: as many bits as there are, in whole bytes.
    """
    form = None if dtype is None else FORMATS[getattr(torch, dtype)]
    width = form.width if form is not None else 8 * max(1, -(-max(before, after).bit_length() // 8))
    mantissa = None if form is None or form.number is None else form.number.mantissa
    return tuple(
        Bit(place, _part(place, width, mantissa), before >> place & 1, after >> place & 1)
        for place in range(width - 1, -1, -1)
    )


def _part(place: int, width: int, mantissa: int | None) -> Part:
    if mantissa is None:
        return "bit"
    if place < mantissa:
        return "mantissa"
    # a format of powers of two alone has no sign
    return "sign" if place == width - 1 and mantissa else "exponent"
