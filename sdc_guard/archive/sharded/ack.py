"""What the ranks tell each other in the folder of a checkpoint that is being written.

`plan-rank-00000.json`: what a rank holds. `writes.json`: which rank writes what. `ack-rank-00000
.json`: what a rank has written, synced and read back; these stay in the checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from ...errors import CheckpointUnreadable
from ...store.atomic import publish_text
from ..manifest import FileEntry, TensorEntry, file_entry
from .flat import KINDS
from .flat import Path as Way
from .pieces import Piece

SCHEMA: Final = "sdc-guard/ack/1"
WRITES: Final = "writes.json"
_END: Final = 1 << 62


def plan_name(rank: int) -> str:
    """The file in which a rank says what it holds."""
    return f"plan-rank-{rank:05d}.json"


def ack_name(rank: int) -> str:
    """The file in which a rank says what it has written."""
    return f"ack-rank-{rank:05d}.json"


@dataclass(frozen=True)
class Written:
    """A piece in a file.

    Attributes:
        piece: with the digest that it must have.
        file: name in the folder.
        first, bytes: the range of the item, a torch.save file.
        data: of a tensor, the first byte of its elements in the file.
        xxh3: of the item's bytes.
    """

    piece: Piece
    file: str
    first: int
    bytes: int
    data: int
    xxh3: str


@dataclass(frozen=True)
class Ack:
    """What one rank tells.

    Attributes:
        rank, step, attempt: of whoever tells it.
        save: a name that no other save has.
        pieces: that it holds (in a plan).
        written: that it wrote (in an acknowledgement).
        files: that it wrote.
        paths: how to come to each value and tensor in the payload.
        placements: of distributed tensors, by name.
        reasons: why the checkpoint is not clean, as far as this rank knows.
    """

    rank: int
    step: int
    attempt: int
    save: str
    pieces: tuple[Piece, ...] = ()
    written: tuple[Written, ...] = ()
    files: tuple[FileEntry, ...] = ()
    paths: Mapping[str, Way] = field(default_factory=dict)
    placements: Mapping[str, str] = field(default_factory=dict)
    reasons: tuple[str, ...] = ()

    def publish(self, path: Path) -> None:
        """Write it, atomically and synced.

        Raises:
            OSError: as the file system gave it.
        """
        content = {
            "schema": SCHEMA,
            "rank": self.rank,
            "step": self.step,
            "attempt": self.attempt,
            "save": self.save,
            "pieces": [_piece_row(piece) for piece in self.pieces],
            "written": [_written_row(one) for one in self.written],
            "files": [asdict(one) for one in self.files],
            "paths": {name: [list(part) for part in way] for name, way in self.paths.items()},
            "placements": dict(self.placements),
            "reasons": list(self.reasons),
        }
        publish_text(path, json.dumps(content) + "\n")

    @classmethod
    def read(cls, path: Path) -> Ack:
        """Read what a rank published.

        Raises:
            CheckpointUnreadable: missing, damaged, or of a newer version.
        """
        try:
            return cls._parse(json.loads(path.read_text(encoding="utf-8")))
        except OSError as error:
            what = f"{path.name} cannot be read ({error.strerror})"
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            what = f"{path.name} is damaged, or of a newer version"
        raise CheckpointUnreadable(
            what, where=str(path), next_step="it cannot be judged; use another checkpoint"
        )

    @classmethod
    def _parse(cls, content: Any) -> Ack:
        if content["schema"] != SCHEMA:
            raise ValueError
        return cls(
            _whole(content["rank"]),
            _whole(content["step"]),
            _whole(content["attempt"]),
            _text(content["save"]),
            tuple(_piece(row) for row in content["pieces"]),
            tuple(_written(row) for row in content["written"]),
            tuple(file_entry(row) for row in content["files"]),
            {name: _way(way) for name, way in content["paths"].items()},
            {name: _text(value) for name, value in content["placements"].items()},
            tuple(_text(reason) for reason in content["reasons"]),
        )


def publish_writes(path: Path, names: Mapping[int, Iterable[int]]) -> None:
    """Say which of the pieces in its plan each rank writes, by their places in it."""
    publish_text(path, json.dumps({str(rank): list(places) for rank, places in names.items()}))


def read_writes(path: Path, rank: int) -> list[int]:
    """The places in its plan of the pieces that a rank writes.

    Raises:
        CheckpointUnreadable: damaged.
    """
    try:
        return [_whole(place) for place in json.loads(path.read_text("utf-8"))[str(rank)]]
    except (OSError, ValueError, KeyError, TypeError):
        raise CheckpointUnreadable(f"{WRITES} is damaged", where=str(path)) from None


def _piece_row(piece: Piece) -> list[Any]:
    entry = piece.entry
    told = None if entry is None else [entry.h, entry.s1, entry.s2, entry.kind, entry.layer]
    return [piece.name, piece.dtype, piece.shape, piece.offsets, piece.sizes, told, piece.own]


def _piece(row: Any) -> Piece:
    name, dtype, shape, offsets, sizes, told, own = row
    piece = Piece(
        _text(name), _text(dtype), _numbers(shape), _numbers(offsets), _numbers(sizes),
        None if told is None else TensorEntry(*told), own is True,
    )  # fmt: skip
    if piece.entry is not None and not all(0 <= x < 1 << 64 for x in piece.entry.digest):
        raise ValueError
    if not len(piece.shape) == len(piece.offsets) == len(piece.sizes) or any(
        at + size > end
        for at, size, end in zip(piece.offsets, piece.sizes, piece.shape, strict=True)
    ):
        raise ValueError
    if not piece.is_value and not hasattr(piece.torch_dtype, "itemsize"):
        raise ValueError
    return piece


def _written_row(one: Written) -> list[Any]:
    return [*_piece_row(one.piece), one.file, one.first, one.bytes, one.data, one.xxh3]


def _written(row: Any) -> Written:
    *piece, file, first, size, data, digest = row
    if Path(_text(file)).name != file:
        raise ValueError
    return Written(_piece(piece), file, _whole(first), _whole(size), _whole(data), _text(digest))


def _way(way: Any) -> Way:
    found = [(_text(kind), key) for kind, key in way]
    for kind, key in found:
        if kind not in KINDS or (type(key) is not (str if kind == "d" else int)):
            raise ValueError
        if kind == "l" and not _whole(key) < 1 << 24:  # a list is made as long as that
            raise ValueError
    return tuple(found)


def _numbers(values: Any) -> tuple[int, ...]:
    return tuple(_whole(value) for value in values)


def _whole(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _END:
        raise ValueError
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
