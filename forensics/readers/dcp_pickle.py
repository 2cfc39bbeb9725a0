"""Reading the pickle of a DCP directory's `.metadata`: stand-ins, and nothing that runs."""

from __future__ import annotations

import io
from typing import Any

from sdc_guard.archive.inert_pickle import InertUnpickler
from sdc_guard.archive.pickle_bounds import check_bounds


class _Sealed(type):
    """The type of stand-ins: a pickle can set attributes of what it names, but not of these."""

    def __setattr__(cls, name: str, value: Any) -> None:
        raise AttributeError(name)


class Stand(metaclass=_Sealed):
    """Stands for an object of DCP's: its attributes are the pickled ones, and are not checked."""

    def __init__(self, *_: Any, **__: Any) -> None: ...


class TensorEntry(Stand):
    """TensorStorageMetadata: properties, size, chunks."""


class BytesEntry(Stand):
    """BytesStorageMetadata."""


class ChunkEntry(Stand):
    """ChunkStorageMetadata: offsets, sizes."""


class IndexEntry(Stand):
    """MetadataIndex: fqn, offset."""


class StorageEntry(Stand):
    """_StorageInfo: relative_path, offset, length, transform_descriptors."""


class MetadataEntry(Stand):
    """Metadata: state_dict_metadata, storage_data."""


class PropertiesEntry(Stand):
    """TensorProperties: its state is a tuple that begins with the dtype."""

    def __setstate__(self, state: Any) -> None:
        self.state = state


_STANDS = {
    "Metadata": MetadataEntry,
    "TensorStorageMetadata": TensorEntry,
    "BytesStorageMetadata": BytesEntry,
    "ChunkStorageMetadata": ChunkEntry,
    "TensorProperties": PropertiesEntry,
    "MetadataIndex": IndexEntry,
    "_StorageInfo": StorageEntry,
}


class _MetadataUnpickler(InertUnpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("torch.distributed.checkpoint") and name in _STANDS:
            return _STANDS[name]
        if (module, name) == ("torch", "Size"):
            return tuple  # written in C: no pickle can set an attribute of it
        return super().find_class(module, name)


def load_metadata(content: bytes) -> Any:
    """The object of a `.metadata` file; MetadataEntry if it is one.

    Raises errors of every kind if it is damaged, and pickle.UnpicklingError if it would take
    memory out of proportion.
    """
    check_bounds(content)
    return _MetadataUnpickler(io.BytesIO(content)).load()
