"""Where the elements of many tensors lie, as a table on their device.

A kernel that reads many tensors at once gives every program a chunk of one of them, and finds it
in this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from ..device_tables import KeptTables, upload

CHUNK: Final = 1 << 16  # elements; a multiple of every read's width
VECTOR: Final = 16  # bytes that one thread reads at once, from addresses divisible by it


@dataclass(frozen=True)
class Launch:
    """Chunks that one launch of a kernel reads: `chunks` of them from `first` on.

    Attributes:
        aligned: whether their addresses are divisible by VECTOR.
    """

    first: int
    chunks: int
    dtype: torch.dtype
    aligned: bool


@dataclass(frozen=True)
class ChunkTable:
    """Chunks of at most CHUNK elements, those of one tensor in their order.

    Attributes:
        words: int64, on the tensors' device: each chunk's address, each chunk's elements, and
            for each tensor its first chunk and the one after its last.
        chunks: their number.
        launches: one for each dtype and alignment that there is.
    """

    words: torch.Tensor
    chunks: int
    launches: tuple[Launch, ...]


class ChunkTables:
    """Makes tables, and keeps the newest."""

    def __init__(self, *kept: int) -> None:
        self._tables: KeptTables[ChunkTable] = KeptTables(*kept)

    def of(self, tensors: list[torch.Tensor]) -> ChunkTable:
        """The table of dense tensors on one device; the copy to it is not waited for."""
        device = tensors[0].device
        places = tuple((x.data_ptr(), x.numel(), x.dtype) for x in tensors)
        return self._tables.get(
            device, places, lambda: _table([x.dtype for x in tensors], places, device)
        )


def _table(
    dtypes: list[torch.dtype],
    places: tuple[tuple[int, int, torch.dtype], ...],
    device: torch.device,
) -> ChunkTable:
    kinds = [(dtype, address % VECTOR == 0) for address, _, dtype in places]
    order = sorted(range(len(places)), key=lambda place: (str(kinds[place][0]), kinds[place][1]))
    address, numel = (np.array([x[i] for x in places], dtype=np.int64) for i in (0, 1))
    width = np.array([dtype.itemsize for dtype in dtypes], dtype=np.int64)
    words, spans = _words(address, numel, width, np.array(order, dtype=np.int64))
    launches: list[Launch] = []
    for place in order:
        first, end = (int(chunk) for chunk in spans[place])
        if first == end:
            continue
        last = launches[-1] if launches else None
        if last is not None and (last.dtype, last.aligned) == kinds[place]:
            launches[-1] = Launch(last.first, end - last.first, *kinds[place])
        else:
            launches.append(Launch(first, end - first, *kinds[place]))
    return ChunkTable(upload(words, device), (len(words) - spans.size) // 2, tuple(launches))


def _words(
    address: NDArray[np.int64],
    numel: NDArray[np.int64],
    width: NDArray[np.int64],
    order: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The table's words, and the first and the last chunk but one of each tensor, (tensors, 2)."""
    chunks = -(-numel // CHUNK)
    end = np.cumsum(chunks[order])
    spans = np.empty((len(numel), 2), dtype=np.int64)
    spans[order, 0], spans[order, 1] = end - chunks[order], end
    owner = np.repeat(order, chunks[order])
    start = (np.arange(len(owner)) - spans[owner, 0]) * CHUNK
    lengths = np.minimum(CHUNK, numel[owner] - start)
    return np.concatenate([address[owner] + start * width[owner], lengths, spans.ravel()]), spans
