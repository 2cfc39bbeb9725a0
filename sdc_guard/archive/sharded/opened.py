"""Reading a sharded checkpoint: each piece is proven to be the one that was written, then used.

Nothing of it is run: where pieces lie is said by JSON files whose checksums the manifest has, not
by DCP's own `.metadata`, which is a pickle.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

from ...digest import Digest
from ...errors import CheckpointMismatch, CheckpointUnreadable
from ..compare import TensorMismatch, solve_change
from ..manifest import FileEntry, Manifest
from .ack import Ack, Written, ack_name
from .files import checksum, elements, mapped
from .flat import Path as Way
from .pieces import Piece
from .place import Place

NEXT_STEP = "load an older clean checkpoint"


class OpenedFolder:
    """A checkpoint's folder.

    Args:
        folder, manifest: of the checkpoint.
        place: where its files are read; from the folder by default.

    Attributes:
        written: pieces by name.
        by_rank: the pieces that each rank wrote.
        paths: how to come to each leaf of the payload.

    Raises:
        CheckpointUnreadable: a file that says where pieces are is missing or damaged.
        CheckpointMismatch: one is not the one that was written.
    """

    def __init__(self, folder: Path, manifest: Manifest, place: Place | None = None) -> None:
        self.folder, self.manifest = folder, manifest
        self.place = place or Place(folder)
        self._entries = {file.name: file for file in manifest.files}
        self._files: dict[str, memoryview] = {}
        self.written: dict[str, list[Written]] = {}
        self.by_rank: list[tuple[Written, ...]] = []
        self.paths: dict[str, Way] = {}
        for rank in range(manifest.world_size):
            self._add(self._ack(rank))

    def leaf(self, name: str) -> Any:
        """A whole tensor, in memory of its own, or a value.

        Raises:
            CheckpointMismatch, CheckpointUnreadable: its bytes are not those that were written.
        """
        first, *_ = pieces = self.written[name]
        if first.piece.is_value:
            return self.value(first)
        whole = torch.empty(first.piece.shape, dtype=first.piece.torch_dtype)
        box = Piece(
            name, first.piece.dtype, first.piece.shape, (0,) * whole.dim(), tuple(whole.shape)
        )
        covered = sum(one.piece.numel for one in pieces)
        if covered != math.prod(first.piece.shape):
            raise CheckpointUnreadable(f"{name}: pieces are missing", where=str(self.folder))
        self.fill(whole, box)
        return whole

    def fill(self, target: torch.Tensor, box: Piece) -> None:
        """Copy into a tensor what a box of its whole holds.

        Args:
            target: of the box's sizes, on any device.

        Raises:
            CheckpointMismatch, CheckpointUnreadable: bytes are not those that were written.
        """
        for one in self.written[box.name]:
            common = _common(box, one.piece)
            if common is None:
                continue
            part, there = self.tensor(one), target
            for dimension, (start, end) in enumerate(common):
                length = end - start
                part = part.narrow(dimension, start - one.piece.offsets[dimension], length)
                there = there.narrow(dimension, start - box.offsets[dimension], length)
            with torch.no_grad():
                there.copy_(part)

    def tensor(self, one: Written) -> torch.Tensor:
        """A piece, sharing memory with its file, after its bytes are proven.

        Raises:
            CheckpointMismatch, CheckpointUnreadable: they are not those that were written.
        """
        self._prove(one)
        tensor = elements(self._file(one.file), one)
        expected = one.piece.entry
        if self.manifest.status != "clean" and expected is not None:
            found = one.piece.digest_of(tensor)
            if found != expected.digest:
                raise self._mismatch(self._difference(one, tensor))
        return tensor

    def value(self, one: Written) -> Any:
        """A value, after its bytes are proven; by torch.load(weights_only=True).

        Raises:
            CheckpointMismatch, CheckpointUnreadable: they are not those that were written, or hold
                what is not loaded.
        """
        content = self._prove(one)
        try:
            return torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
        except Exception as error:  # noqa: BLE001 - because torch.load raises errors of every kind
            told = str(error).strip().splitlines()
            raise CheckpointUnreadable(
                f"torch.load(weights_only=True) refuses {one.piece.name}: "
                f"{told[0] if told else type(error).__name__}",
                where=str(self.folder),
                next_step="pass only tensors, numbers, text and containers to guard.checkpoint",
            ) from None

    def files_for(self, boxes: Iterable[Piece]) -> set[str]:
        """The files that hold any part of these boxes, whose shapes are those that were saved."""
        return {
            one.file
            for box in boxes
            for one in self.written.get(box.name, ())
            if _common(box, one.piece) is not None
        }

    def differences(self) -> Iterator[tuple[str, str]]:
        """(tensor, value or file, what is wrong with it) of all that is; reads every byte."""
        for name, entry in self._entries.items():
            try:
                if checksum(self._file(name)) != entry.xxh3:
                    yield name, "not the bytes that were written, by its checksum"
            except CheckpointUnreadable as error:
                yield name, error.what.removeprefix(f"{name}: ")
        for pieces in self.written.values():
            for one in pieces:
                try:
                    self._prove(one)
                    if not one.piece.is_value:
                        self.tensor(one)
                except (CheckpointUnreadable, CheckpointMismatch) as error:
                    what = error.what.removeprefix(_NOT_WRITTEN)
                    yield one.piece.name, what.removeprefix(f"{one.piece.name}: ")
                    break

    def digest(self, one: Written) -> Digest:
        """The digest of a tensor's piece as it lies in the files, whether or not it is right.

        Raises:
            CheckpointUnreadable: it cannot be read.
        """
        try:
            return one.piece.digest_of(elements(self._file(one.file), one))
        except ValueError:  # as long as it was, but not as the ack says
            raise CheckpointUnreadable(f"{one.piece.name}: not in the files") from None

    def mismatch(self, name: str) -> TensorMismatch | None:
        """The first piece of a tensor that has not the digest that it must have; None if all have.

        None, too, if there is no such tensor, or its file cannot be read.
        """
        for one in self.written.get(name, ()):
            entry = one.piece.entry
            if one.piece.is_value or entry is None:
                continue
            try:
                tensor = elements(self._file(one.file), one)
            except (CheckpointUnreadable, ValueError):  # as long as it was, but not as the ack says
                continue
            found = one.piece.digest_of(tensor)
            if found != entry.digest:
                change = solve_change(tensor, entry.digest, found, place=one.piece.place)
                return TensorMismatch(name, entry.kind, entry.layer, change)
        return None

    def _prove(self, one: Written) -> memoryview:
        content = self._file(one.file)[one.first : one.first + one.bytes]
        if len(content) != one.bytes or checksum(content) != one.xxh3:
            told = "its bytes differ"
            if not one.piece.is_value and len(content) == one.bytes:
                told = self._difference(one, elements(self._file(one.file), one))
            raise self._mismatch(told if told.startswith(one.piece.name) else _of(one, told))
        return content

    def _difference(self, one: Written, tensor: torch.Tensor) -> str:
        """What of a piece is not as it should be, by its digest."""
        piece, where = one.piece, ""
        if piece.entry is not None:
            found = piece.digest_of(tensor)
            if found == piece.entry.digest:
                return _of(one, "bytes beside its elements differ")
            change = solve_change(tensor, piece.entry.digest, found, place=piece.place)
            where = f" (element {change.index}, bits {change.bits})" if change else ""
        return _of(one, f"bytes differ from the recorded digest{where}")

    def _mismatch(self, told: str) -> CheckpointMismatch:
        return CheckpointMismatch(_NOT_WRITTEN + told, where=str(self.folder), next_step=NEXT_STEP)

    def _file(self, name: str) -> memoryview:
        if name not in self._files:
            self._files[name] = self._opened(name)
        return self._files[name]

    def _opened(self, name: str) -> memoryview:
        entry = self._entries.get(name) or FileEntry(name, -1, "")
        path = self.place.file(name)
        try:
            content = mapped(path)
        except OSError as error:
            what = "missing" if isinstance(error, FileNotFoundError) else str(error.strerror)
        else:
            if len(content) == entry.bytes:
                return content
            what = f"{len(content):,} of {entry.bytes:,} bytes"
        raise CheckpointUnreadable(f"{name}: {what}", where=str(self.folder), next_step=NEXT_STEP)

    def _ack(self, rank: int) -> Ack:
        name = ack_name(rank)
        if name not in self._entries:
            raise CheckpointUnreadable(
                f"the manifest does not know {name}", where=str(self.folder), next_step=NEXT_STEP
            )
        if checksum(self._file(name)) != self._entries[name].xxh3:
            raise self._mismatch(f"{name} is another one")
        return Ack.read(self.place.file(name))

    def _add(self, ack: Ack) -> None:
        self.by_rank.append(ack.written)
        for one in ack.written:
            self.written.setdefault(one.piece.name, []).append(one)
        self.paths = dict(ack.paths) | self.paths


_NOT_WRITTEN = "the checkpoint's bytes are not those that were saved: "


def _of(one: Written, told: str) -> str:
    return f"{one.piece.name}: {told}"


def _common(one: Piece, other: Piece) -> list[tuple[int, int]] | None:
    """Where two boxes overlap: (first, end) along each dimension; None if nowhere."""
    found = []
    for at, size, start, length in zip(
        one.offsets, one.sizes, other.offsets, other.sizes, strict=True
    ):
        first, end = max(at, start), min(at + size, start + length)
        if first >= end:
            return None
        found.append((first, end))
    return found
