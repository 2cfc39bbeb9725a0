"""manifest.json: what a checkpoint must contain, and what is thought of it."""

from __future__ import annotations

import json
import re
from dataclasses import MISSING, asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, get_args

from ..digest import Digest
from ..errors import CheckpointUnreadable
from ..store.atomic import publish_text
from .own_checksum import checksum_without

Status = Literal["untested", "clean", "suspect", "corrupt"]
SCHEMA = "sdc-guard/manifest/1"
SHARDED_SCHEMA = "sdc-guard/manifest/2"
SHARDED = "dcp"  # the format of checkpoints of several files, that of torch.distributed.checkpoint
FILE = "manifest.json"
_OWN: Final = "own_xxh3"  # of what the manifest says; not in those from before there was one
_END: Final = 1 << 63  # steps and sizes are below it: stores keep signed 64 bits
_XXH3 = re.compile(r"(?:[0-9a-f]{32})?")


@dataclass(frozen=True)
class TensorEntry:
    """The digest that a tensor of the checkpoint must have.

    Attributes:
        h, s1, s2: the digest, unsigned, in hexadecimal: JSON readers lose digits beyond 2⁵³.
        kind, layer: the tensor of the trace that it is a copy of, if there is one; then the
            digest is the one that the trace recorded after the step, not one taken at saving.
        dtype, shape, placements: of the whole tensor, and how ranks shared it; None in manifests of
            version 1.
    """

    h: str
    s1: str
    s2: str
    kind: str | None = None
    layer: str | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    placements: str | None = None

    @classmethod
    def of(cls, digest: Digest, kind: str | None = None, layer: str | None = None) -> TensorEntry:
        """The entry for a digest."""
        h, s1, s2 = (f"{value:016x}" for value in digest)
        return cls(h, s1, s2, kind, layer)

    @property
    def digest(self) -> Digest:
        """The digest as numbers."""
        return Digest(int(self.h, 16), int(self.s1, 16), int(self.s2, 16))


@dataclass(frozen=True)
class FileEntry:
    """A file of a checkpoint: its name in the folder, bytes, and xxh3-128 in hexadecimal."""

    name: str
    bytes: int
    xxh3: str


@dataclass(frozen=True)
class Manifest:
    """A sealed checkpoint.

    Attributes:
        step: the step whose result it holds.
        trace_step: the step of the trace that it was compared with; the same unless the
            script counts otherwise than the guard.
        attempt: the attempt that wrote it.
        status, reasons: the gate's judgement when it was sealed.
        file, bytes: name and size of the checkpoint's file in this folder; of several files the
            one that describes the others, and the size of all.
        tensors: path in the saved structure to expected digest.
        created: seconds since the epoch.
        xxh3: xxh3-128 of the whole file in hexadecimal: of its names, sizes and directory, too,
            that no tensor's digest is about. "" in manifests from before there was one, which
            prove less.
        format: "torch" for one file of torch.save, or SHARDED.
        files: all files of a checkpoint that has several, manifest.json aside.
        world_size: ranks that wrote it.
        layout: how the training was laid out: meshes, wrappers, dtypes.
        environment: xxh3-64, in hexadecimal, of the attempt's `environment` in run.json.
        notes: what is worth knowing and no reason for doubt.
    """

    step: int
    trace_step: int
    attempt: int
    status: Status
    reasons: tuple[str, ...]
    file: str
    bytes: int
    tensors: dict[str, TensorEntry]
    created: float
    xxh3: str = ""
    format: str = "torch"
    files: tuple[FileEntry, ...] = ()
    world_size: int = 1
    layout: dict[str, Any] = field(default_factory=dict)
    environment: str = ""
    notes: tuple[str, ...] = ()

    def write(self, folder: Path) -> None:
        """Write manifest.json into the checkpoint's folder, atomically."""
        content = asdict(self)
        if self.format != SHARDED:
            content = _of_version_1(content)
        content = {"schema": SHARDED_SCHEMA if self.format == SHARDED else SCHEMA, **content}
        content = json.loads(json.dumps(content))  # as whoever reads it has it
        content[_OWN] = checksum_without(content, _OWN)
        publish_text(folder / FILE, json.dumps(content, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of the checkpoint in `folder`.

        Raises:
            CheckpointUnreadable: there is none, it is damaged, or of a newer version. One that
                does not fit its own checksum convicts nothing, and is what is damaged.
        """
        path = folder / FILE
        try:
            text = path.read_text(encoding="utf-8") if path.is_file() else None  # no pipe
            content = None if text is None else json.loads(text)
        except PermissionError:
            raise _damaged(path, "no permission") from None
        except OSError:
            text = None
        except UnicodeDecodeError:
            raise _damaged(path, "it is no text") from None
        except RecursionError:
            raise _damaged(path, "its lists have no end") from None
        except ValueError as error:
            line = getattr(error, "lineno", 1)
            raise _damaged(path, f"it is cut off or no JSON, in line {line}") from None
        if text is None:
            raise CheckpointUnreadable(
                "no manifest.json there",
                where=str(folder),
                next_step="give a checkpoint folder that guard.checkpoint wrote",
            )
        try:
            return cls._parse(content)
        except _Wrong as wrong:
            raise _damaged(path, str(wrong)) from None
        except KeyError as missing:
            raise _damaged(path, f"it has no {missing}") from None
        except (ValueError, TypeError, AttributeError):
            raise _damaged(path, "its entries are not those of a manifest") from None

    @classmethod
    def _parse(cls, content: Any) -> Manifest:
        if not isinstance(content, dict):
            raise _Wrong("it holds no object")
        if _OWN in content and content[_OWN] != checksum_without(content, _OWN):
            raise _Wrong("it does not fit its own checksum")
        content.pop(_OWN, None)
        schema = content.pop("schema")
        if schema not in (SCHEMA, SHARDED_SCHEMA):
            raise _Wrong(_unknown_schema(schema))
        unknown = content.keys() - {one.name for one in fields(cls)}
        if unknown:
            raise _Wrong(f"it has an entry {sorted(unknown)[0]!r}, which is not known")
        tensors = {name: _entry(name, row) for name, row in content["tensors"].items()}
        for one in fields(cls):
            if one.default is MISSING and one.default_factory is MISSING:
                _ = content[one.name]
        read = {"tensors": tensors, "reasons": tuple(content["reasons"])}
        read |= {"notes": tuple(content.get("notes", ())), "files": _files(content)}
        manifest = cls(**{**content, **read, "xxh3": content.get("xxh3") or ""})
        for name in ("step", "trace_step", "attempt", "bytes"):
            value = content[name]
            if type(value) is not int or not 0 <= value < _END:  # True is an int, too
                raise _Wrong(f"its {name!r} is no whole number from 0 to 2^63")
        if not all(isinstance(reason, str) for reason in manifest.reasons):
            raise _Wrong("its 'reasons' are no texts")
        if manifest.status not in get_args(Status):
            known = ", ".join(get_args(Status))
            raise _Wrong(f"its status is {manifest.status!r}, none of {known}")
        if type(manifest.created) not in (int, float):
            raise _Wrong("its time is no number")
        if not isinstance(manifest.xxh3, str) or not _XXH3.fullmatch(manifest.xxh3):
            raise _Wrong("its xxh3 is no checksum")
        if not isinstance(manifest.file, str) or Path(manifest.file).name != manifest.file:
            raise _Wrong(f"its file {manifest.file!r} is not in this folder")
        if schema != (SHARDED_SCHEMA if manifest.format == SHARDED else SCHEMA):
            raise _Wrong(f"its format is {manifest.format!r}, which is not of {schema!r}")
        if type(manifest.world_size) is not int or manifest.world_size < 1:
            raise _Wrong("its world_size is no number of ranks")
        if not all(isinstance(note, str) for note in manifest.notes):
            raise _Wrong("its 'notes' are no texts")
        if not isinstance(manifest.layout, dict) or not isinstance(manifest.environment, str):
            raise _Wrong("its layout or environment is none")
        return manifest


class _Wrong(ValueError):
    """What a manifest says that cannot be, in words."""


def file_entry(row: Any) -> FileEntry:
    """A file's entry, checked.

    Raises:
        ValueError, TypeError, KeyError: it is none, or lies outside of the folder.
    """
    entry = FileEntry(row["name"], row["bytes"], row["xxh3"])
    if Path(entry.name).name != entry.name or len(entry.xxh3) != 32:
        raise ValueError
    if not _XXH3.fullmatch(entry.xxh3) or type(entry.bytes) is not int:
        raise ValueError
    if not 0 <= entry.bytes < _END:
        raise ValueError
    return entry


def _files(content: dict[str, Any]) -> tuple[FileEntry, ...]:
    try:
        return tuple(file_entry(row) for row in content.get("files", ()))
    except (ValueError, TypeError, KeyError):
        raise _Wrong("its 'files' are not those of this folder") from None


def _of_version_1(content: dict[str, Any]) -> dict[str, Any]:
    """Without what came later, which a checkpoint of one file has no use for."""
    later = ("format", "files", "world_size", "layout", "environment", "notes")
    content = {name: value for name, value in content.items() if name not in later}
    for entry in content["tensors"].values():
        for name in ("dtype", "shape", "placements"):
            del entry[name]
    return content


def _unknown_schema(schema: Any) -> str:
    said = f"its schema is {schema!r}, not {SCHEMA!r} or {SHARDED_SCHEMA!r}"
    name, _, version = str(schema).rpartition("/")
    if f"{name}/" == SCHEMA[:-1] and version.isdecimal():
        return f"{said}: it was written by a newer version of SDC Guard; update"
    return said


def _entry(name: str, row: Any) -> TensorEntry:
    try:
        entry = TensorEntry(**row)
        if entry.shape is not None:
            entry = replace(entry, shape=tuple(map(int, entry.shape)))
        numbers = entry.digest  # raises where one is none
    except (ValueError, TypeError):
        raise _Wrong(f"its entry for tensor {name!r} holds no digest") from None
    if not all(0 <= value < 1 << 64 for value in numbers):
        raise _Wrong(f"its entry for tensor {name!r} holds no digest")
    texts = (entry.kind, entry.layer, entry.dtype, entry.placements)
    if not all(isinstance(x, str | None) for x in texts):
        raise _Wrong(f"kind, layer, dtype or placements of tensor {name!r} is no text")
    return entry


def _damaged(path: Path, what: str) -> CheckpointUnreadable:
    return CheckpointUnreadable(
        f"manifest.json cannot be read: {what}",
        where=str(path),
        next_step="it cannot be judged; use another checkpoint",
    )
