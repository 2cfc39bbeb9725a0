"""The file of a seal: `NAME.sdc-seal.json` beside the checkpoint NAME, with its own checksum.

A seal convicts others, and is only a file as well: one that does not fit its own checksum says
nothing. Seals of version 1 have none.
"""

from __future__ import annotations

import json
import re
import stat
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from ...digest import Digest
from ...errors import CheckpointUnreadable, UsageError
from ...store.atomic import publish_text
from ..manifest import Status
from ..own_checksum import checksum_without

SCHEMA: Final = "sdc-bisect/seal/2"
_VERSION_1: Final = "sdc-bisect/seal/1"
SUFFIX: Final = ".sdc-seal.json"
MOST: Final = 64 << 20  # bytes of a seal: some 200,000 tensors
_OWN: Final = "xxh3"
_XXH3 = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class SealedTensor:
    """A tensor when its checkpoint was sealed.

    Attributes:
        dtype: its name, without "torch.".
        shape: of the whole tensor.
        digest: of its words.
        nan: elements that were NaN.
    """

    dtype: str
    shape: tuple[int, ...]
    digest: Digest
    nan: int = 0

    def as_dict(self) -> dict[str, Any]:
        """In a seal; digests in hexadecimal, because JSON readers lose digits beyond 2⁵³."""
        numbers = [f"{value:016x}" for value in self.digest]
        stored = {"dtype": self.dtype, "shape": list(self.shape), "digest": numbers}
        return stored | ({"nan": self.nan} if self.nan else {})

    @classmethod
    def of_dict(cls, stored: Mapping[str, Any]) -> SealedTensor:
        """From a seal.

        Raises:
            ValueError, KeyError, TypeError: it is none.
        """
        h, s1, s2 = (int(value, 16) for value in stored["digest"])
        if isinstance(stored["digest"], str) or not all(
            0 <= value < 1 << 64 for value in (h, s1, s2)
        ):
            raise ValueError("no digest")
        shape = tuple(int(size) for size in stored["shape"])
        return cls(str(stored["dtype"]), shape, Digest(h, s1, s2), int(stored.get("nan", 0)))


@dataclass(frozen=True)
class Guarded:
    """What the guard of the training knew of a checkpoint when it sealed it.

    Attributes:
        attempt: that wrote it.
        trace_step: the step of the trace that its tensors were compared with.
        status, reasons: the gate's judgement, as in a manifest.
        tensors: name of a tensor in the file to kind and layer of the tensor of the trace whose
            digest after `trace_step` it has.
    """

    attempt: int
    trace_step: int
    status: Status
    reasons: tuple[str, ...] = ()
    tensors: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    @classmethod
    def of_dict(cls, stored: Mapping[str, Any]) -> Guarded:
        """From a seal.

        Raises:
            ValueError, KeyError, TypeError, AttributeError: it is none.
        """
        if stored["status"] not in get_args(Status):
            raise ValueError("no status")
        tensors = {str(name): (str(k), str(v)) for name, (k, v) in stored["tensors"].items()}
        reasons = tuple(map(str, stored["reasons"]))
        numbers = _whole(stored["attempt"]), _whole(stored["trace_step"])
        return cls(*numbers, stored["status"], reasons, tensors)


@dataclass(frozen=True)
class Seal:
    """What was there when a checkpoint was sealed.

    Attributes:
        step: of the checkpoint.
        format: its name.
        files: path below the checkpoint's own, to size in bytes and xxh3-128 in hexadecimal.
        tensors: the names of those that the files hold.
        digests: of those whose digest was taken; {} in seals of version 1.
        name: of the checkpoint's file or folder; "" in seals of version 1.
        created: seconds since the epoch; 0 in seals of version 1.
        checked: whether it fits a checksum of itself; False in seals of version 1.
        guarded: what a guard knew of it; None in a seal that was made without one.
    """

    step: int
    format: str
    files: Mapping[str, tuple[int, str]]
    tensors: tuple[str, ...]
    digests: Mapping[str, SealedTensor] = field(default_factory=dict)
    name: str = ""
    created: float = 0.0
    checked: bool = False
    guarded: Guarded | None = None

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(size for size, _ in self.files.values())

    @property
    def day(self) -> str:
        """When it was sealed, in UTC, as "2026-03-01"; "" where that is not known."""
        return time.strftime("%Y-%m-%d", time.gmtime(self.created)) if self.created else ""


def seal_of(path: Path) -> Path:
    """Where the seal of the checkpoint at `path` lies."""
    place = path if path.name else path.absolute()  # "." is a folder with a name, too
    return place.with_name(place.name + SUFFIX) if place.name else place / SUFFIX


def own_checksum(content: Mapping[str, Any]) -> str:
    """xxh3-128 of a seal's content: of its canonical JSON without the checksum itself."""
    return checksum_without(content, _OWN)


def publish_seal(path: Path, seal: Seal) -> None:
    """Write a seal beside the checkpoint at `path`; without digests where it would be too large.

    Raises:
        UsageError: it cannot be written.
    """
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "step": seal.step,
        "format": seal.format,
        "name": seal.name,
        "created": seal.created,
        "files": {name: list(entry) for name, entry in seal.files.items()},
        "tensors": list(seal.tensors),
        "digests": {name: one.as_dict() for name, one in seal.digests.items()},
    }
    if seal.guarded is not None:
        content["guard"] = asdict(seal.guarded)
    text = _as_text(content)
    if len(text) > MOST:
        text = _as_text(content | {"digests": {}})
    place = seal_of(path)
    try:
        publish_text(place, text)
    except OSError as error:
        raise UsageError(
            f"the seal cannot be written ({error.strerror})", where=str(place)
        ) from None


def _as_text(content: dict[str, Any]) -> str:
    return json.dumps(content | {_OWN: own_checksum(content)}, indent=1) + "\n"


def seal_at(path: Path) -> Seal | None:
    """The seal of the checkpoint at `path`; None if there is none.

    What is no regular file is not opened, and no more than MOST bytes are read.

    Raises:
        CheckpointUnreadable: it is damaged, no file, too large, or of a newer version.
    """
    place = seal_of(path)
    try:
        content = _bytes(place)
        return None if content is None else _parsed(json.loads(content))
    except _NoSealError as error:
        why = str(error)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"its seal cannot be read ({type(error).__name__})"
    raise CheckpointUnreadable(why, where=str(place))


class _NoSealError(Exception):
    """Why what is there is no seal, in words."""


def _bytes(place: Path) -> bytes | None:
    try:
        status = place.stat()
    except FileNotFoundError:
        if isinstance(place, Path) and place.is_symlink():
            raise _NoSealError("its seal is a link to nothing") from None
        return None
    mode = getattr(status, "st_mode", None)  # a store's files have none
    if not (place.is_file() if mode is None else stat.S_ISREG(mode)):
        raise _NoSealError("its seal is no regular file, and was not opened")
    if status.st_size > MOST:
        raise _NoSealError(f"its seal is too large ({status.st_size:,} bytes)")
    with place.open("rb") as file:
        content = file.read(MOST + 1)
    if len(content) > MOST:
        raise _NoSealError("its seal is too large")
    return content


def _parsed(content: dict[str, Any]) -> Seal:
    if content["schema"] not in (SCHEMA, _VERSION_1):
        raise ValueError("of another version")
    checked = content["schema"] == SCHEMA
    if checked and content[_OWN] != own_checksum(content):
        raise _NoSealError("its seal is damaged: it does not fit its own checksum")
    if not checked and (_OWN in content or "digests" in content):
        raise ValueError("version 1 has neither")
    files = {
        str(name): (_whole(size), str(value)) for name, (size, value) in content["files"].items()
    }
    if not files or not all(_XXH3.fullmatch(value) for _, value in files.values()):
        raise ValueError("a checksum that is none")
    tensors = tuple(map(str, content["tensors"]))
    step, format = _whole(content["step"]), str(content["format"])
    if not checked:
        return Seal(step, format, files, tensors)
    digests = {str(name): SealedTensor.of_dict(one) for name, one in content["digests"].items()}
    created = float(content["created"])
    if not 0 <= created < 1 << 35:
        raise ValueError("no time where one belongs")
    guarded = Guarded.of_dict(content["guard"]) if "guard" in content else None
    name = str(content["name"])
    return Seal(step, format, files, tensors, digests, name, created, True, guarded)


def _whole(value: object) -> int:
    """A step, or bytes: below 2^63, as stores keep them."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError("no step or size where one belongs")
    return value
