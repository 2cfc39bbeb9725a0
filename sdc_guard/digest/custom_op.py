"""The operator sdc_guard::digest_rows: what torch.compile calls for `digest_rows`.

Without a compiler nothing comes here: the first call of such an operator imports the compiler,
which takes a second.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from .device_rows import plain_rows, rows_on_cuda
from .rows import rows_in_host
from .span import Patch, Patches, Place, Span


def digest_operator(tensors: Sequence[torch.Tensor], places: Sequence[Place]) -> torch.Tensor:
    """`digest_rows` as an operator.

    Args:
        tensors: at least one, all on one device.
        places: of each.
    """
    numbers = [number for place in places for number in _encoded(place)]
    found: torch.Tensor = torch.ops.sdc_guard.digest_rows(list(tensors), numbers)
    return found


def _encoded(place: Place) -> list[int]:
    """A place in numbers: patches (0: all is one), and of each its block and its span."""
    if isinstance(place, int):
        return [0, place, 0]
    if isinstance(place, Span):
        return [0, *_levels(place)]
    patches = [
        [len(starts), *starts, *lengths, *_levels(span)] for starts, lengths, span in place.patches
    ]
    return [len(patches), *(number for patch in patches for number in patch)]


def _levels(span: Span) -> list[int]:
    return [span.first, len(span.sizes), *span.sizes, *span.strides]


def _decoded(numbers: Iterator[int]) -> Place:
    patches = next(numbers)
    if not patches:
        span = _span(numbers)
        return span if span.sizes else span.first
    return Patches(tuple(_patch(numbers) for _ in range(patches)))


def _span(numbers: Iterator[int]) -> Span:
    first, levels = next(numbers), next(numbers)
    return Span(first, _take(numbers, levels), _take(numbers, levels))


def _patch(numbers: Iterator[int]) -> Patch:
    dimensions = next(numbers)
    return Patch(_take(numbers, dimensions), _take(numbers, dimensions), _span(numbers))


def _take(numbers: Iterator[int], count: int) -> tuple[int, ...]:
    return tuple(next(numbers) for _ in range(count))


def _places(tensors: list[torch.Tensor], numbers: list[int]) -> list[Place]:
    left = iter(numbers)
    return [_decoded(left) for _ in tensors]


def _operator(rows: Any) -> Any:
    def operator(tensors: list[torch.Tensor], places: list[int]) -> torch.Tensor:
        found: torch.Tensor = rows(tensors, _places(tensors, places))
        return found

    return operator


def _register() -> None:
    schema = "(Tensor[] tensors, int[] places) -> Tensor"
    made: Any = torch.library.custom_op(
        "sdc_guard::digest_rows", _operator(plain_rows), mutates_args=(), schema=schema
    )
    made.register_kernel("cpu", _operator(rows_in_host))
    made.register_kernel("cuda", _operator(rows_on_cuda))

    @made.register_fake  # type: ignore[untyped-decorator] # torch has no types here
    def _(tensors: list[torch.Tensor], places: list[int]) -> torch.Tensor:
        del places
        return tensors[0].new_empty((len(tensors), 3), dtype=torch.int64)


_register()
