"""Where in a `torch.save` file the bytes of each tensor are."""

from __future__ import annotations

import io
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointUnreadable
from .inert_pickle import InertUnpickler, StoredTensor, by_path, stored_tensors

_STRUCTURE = "data.pkl"
_LOCAL_HEADER = struct.Struct("<26xHH")  # of a zip file: lengths of the name and of what follows


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
        with zipfile.ZipFile(path) as archive, path.open("rb") as file:
            records = {info.filename.split("/", 1)[-1]: info for info in archive.infolist()}
            structure = InertUnpickler(io.BytesIO(archive.read(records[_STRUCTURE]))).load()
            places = {}
            for name, stored in by_path(stored_tensors(structure)).items():
                info = records[f"data/{stored.key}"]
                if info.compress_type == zipfile.ZIP_STORED:
                    places[name] = TensorPlace(stored, _start(file, info), info.file_size)
            return places
    except Exception as error:  # noqa: BLE001 - because damaged files raise errors of every kind
        raise CheckpointUnreadable(
            f"no tensor can be found in it: not a torch.save zip file ({type(error).__name__})",
            where=str(path),
            next_step="leave out --tensor, and give --offset",
        ) from None


def _start(file: io.BufferedReader, info: zipfile.ZipInfo) -> int:
    file.seek(info.header_offset)
    name, extra = _LOCAL_HEADER.unpack(file.read(_LOCAL_HEADER.size))
    return info.header_offset + _LOCAL_HEADER.size + int(name) + int(extra)
