"""manifest.json: what a checkpoint must contain, and what is thought of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from ..digest import Digest
from ..errors import CheckpointUnreadable
from ..store.atomic import publish_text

Status = Literal["untested", "clean", "suspect", "corrupt"]
SCHEMA = "sdc-guard/manifest/1"
FILE = "manifest.json"


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
            that no tensor's digest is about. "" in manifests from before there was one.
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
        manifest = cls(**{**content, "tensors": tensors, "reasons": tuple(content["reasons"])})
        for entry in tensors.values():
            _ = entry.digest  # raises where a number is none
            if not all(isinstance(x, str | None) for x in (entry.kind, entry.layer)):
                raise ValueError("a kind or layer that is no text")
        whole = (manifest.step, manifest.trace_step, manifest.attempt, manifest.bytes)
        if manifest.status not in get_args(Status) or not all(isinstance(n, int) for n in whole):
            raise ValueError("a status, step or size that is none")
        if not isinstance(manifest.xxh3, str):
            raise ValueError("a checksum that is no text")
        if not isinstance(manifest.file, str) or Path(manifest.file).name != manifest.file:
            raise ValueError(f"file {manifest.file!r} is not in this folder")
        return manifest
