"""manifest.json: what a checkpoint must contain, and what is thought of it."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

from ..digest import Digest
from ..errors import CheckpointUnreadable
from ..store.atomic import publish_text

Status = Literal["untested", "clean", "suspect", "corrupt"]
SCHEMA = "sdc-guard/manifest/1"
FILE = "manifest.json"
_END: Final = 1 << 63  # steps and sizes are below it: stores keep signed 64 bits
_XXH3 = re.compile(r"(?:[0-9a-f]{32})?")


@dataclass(frozen=True)
class TensorEntry:
    """The digest that a tensor of the checkpoint must have.

    Attributes:
        h, s1, s2: the digest, unsigned, in hexadecimal: JSON readers lose digits beyond 2⁵³.
        kind, layer: the tensor of the trace that it is a copy of, if there is one; then the
            digest is the one that the trace recorded after the step, not one taken at saving.
    """

    h: str
    s1: str
    s2: str
    kind: str | None = None
    layer: str | None = None

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
class Manifest:
    """A sealed checkpoint.

    Attributes:
        step: the step whose result it holds.
        trace_step: the step of the trace that it was compared with; the same unless the
            script counts otherwise than the guard.
        attempt: the attempt that wrote it.
        status, reasons: the gate's judgement when it was sealed.
        file, bytes: name and size of the checkpoint's file in this folder.
        tensors: path in the saved structure to expected digest.
        created: seconds since the epoch.
        xxh3: xxh3-128 of the whole file in hexadecimal: of its names, sizes and directory, too,
            that no tensor's digest is about. "" in manifests from before there was one, which
            prove less.
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

    def write(self, folder: Path) -> None:
        """Write manifest.json into the checkpoint's folder, atomically."""
        content = {"schema": SCHEMA, **asdict(self)}
        publish_text(folder / FILE, json.dumps(content, indent=1) + "\n")

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read the manifest of the checkpoint in `folder`.

        Raises:
            CheckpointUnreadable: there is none, it is damaged, or of a newer version.
        """
        path = folder / FILE
        try:
            return cls._parse(json.loads(path.read_text(encoding="utf-8")))
        except OSError:
            raise CheckpointUnreadable(
                "no manifest.json there",
                where=str(folder),
                next_step="give a checkpoint folder that guard.checkpoint wrote",
            ) from None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise CheckpointUnreadable(
                f"manifest.json cannot be read ({type(error).__name__}: {error})",
                where=str(path),
                next_step="it cannot be judged; use another checkpoint",
            ) from None

    @classmethod
    def _parse(cls, content: dict[str, Any]) -> Manifest:
        schema = content.pop("schema")
        if schema != SCHEMA:
            raise ValueError(f"schema {schema!r}, not {SCHEMA!r}")
        tensors = {name: TensorEntry(**row) for name, row in content["tensors"].items()}
        read = {"tensors": tensors, "reasons": tuple(content["reasons"])}
        manifest = cls(**{**content, **read, "xxh3": content.get("xxh3") or ""})
        for entry in tensors.values():
            _check_entry(entry)
        for name in ("step", "trace_step", "attempt", "bytes"):
            value = content[name]
            if type(value) is not int or not 0 <= value < _END:  # True is an int, too
                raise ValueError(f"{name} is no whole number from 0 to 2^63")
        if manifest.status not in get_args(Status):
            raise ValueError("a status that is none")
        if type(manifest.created) not in (int, float):
            raise ValueError("a time that is none")
        if not isinstance(manifest.xxh3, str) or not _XXH3.fullmatch(manifest.xxh3):
            raise ValueError("a checksum that is none")
        if not isinstance(manifest.file, str) or Path(manifest.file).name != manifest.file:
            raise ValueError(f"file {manifest.file!r} is not in this folder")
        return manifest


def _check_entry(entry: TensorEntry) -> None:
    """Raises ValueError where a digest, a kind or a layer is none."""
    if not all(0 <= value < 1 << 64 for value in entry.digest):
        raise ValueError("a digest that is none")
    if not all(isinstance(x, str | None) for x in (entry.kind, entry.layer)):
        raise ValueError("a kind or layer that is no text")
