"""Where in a `torch.save` file the bytes of each tensor are."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointUnreadable
from .inert_pickle import StoredTensor, by_path, stored_tensors
from .torch_records import torch_records, torch_structure


@dataclass(frozen=True)
class TensorPlace:
    """A tensor in a file.

    Attributes:
        stored: how it lies in its storage.
        start: first byte of the storage in the file.
        size: bytes of the storage.
    """

    stored: StoredTensor
    start: int
    size: int


def tensor_places(path: Path) -> dict[str, TensorPlace]:
    """Dotted path in the saved structure to place; nothing in the file is run.

    Raises:
        CheckpointUnreadable: not a zip file of torch.save, or one whose structure is damaged.
    """
    try:
        found = torch_records(path)
        structure = torch_structure(found)
        stored = by_path(stored_tensors(structure.root, structure.size))
        places = {}
        for name, tensor in stored.items():
            info = found.records[f"data/{tensor.key}"]
            if info.compress_type == zipfile.ZIP_STORED:
                start = found.start(f"data/{tensor.key}")
                places[name] = TensorPlace(tensor, start, info.file_size)
        return places
    except Exception as error:  # noqa: BLE001 - because damaged files raise errors of every kind
        raise CheckpointUnreadable(
            f"no tensor can be found in it: not a torch.save zip file ({type(error).__name__})",
            where=str(path),
            next_step="leave out --tensor, and give --offset",
        ) from None
