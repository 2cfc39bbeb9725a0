"""Reading the pickle of a DCP directory's `.metadata`: stand-ins, and nothing that runs."""

from __future__ import annotations

from typing import Any, Final

from ..inert_pickle import InertUnpickler

_MOST_OPERATIONS: Final = 200_000_000  # a chunk takes 45: 4 million chunks, in some minutes


class Stand:
    """Stands for an object of DCP's: its attributes are the pickled ones, and are not checked."""

    def __init__(self, *_: Any) -> None: ...


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


_PLAIN = frozenset(_STANDS.values()) - {PropertiesEntry}


class MetadataUnpickler(InertUnpickler):
    """Reads a `.metadata`, with a stand-in for each of DCP's classes."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.limit(_MOST_OPERATIONS)

    def find_class(self, module: str, name: str) -> Any:
        if module.startswith("torch.distributed.checkpoint") and name in _STANDS:
            return _STANDS[name]
        return super().find_class(module, name)

    def build(self, target: Any, state: Any) -> None:
        if type(target) in _PLAIN and type(state) is dict:
            self.spend(len(state))
            vars(target).update(state)
        else:
            super().build(target, state)


def load_metadata(content: bytes) -> Any:
    """The object of a `.metadata` file; MetadataEntry if it is one.

    Raises errors of every kind if it is damaged or would take time or memory out of proportion.
    """
    return MetadataUnpickler(content).load()
