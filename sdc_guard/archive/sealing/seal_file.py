"""The seal of a checkpoint that another program wrote, as a file beside it.

The checkpoint's own files are never touched. The seal of `step-100.pt` is
`step-100.pt.sdc-seal.json` beside it, that of a folder lies beside the folder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, get_args

from ...digest import Digest
from ...errors import CheckpointUnreadable, UsageError
from ...store.atomic import publish_text
from ..manifest import Status

SCHEMA: Final = "sdc-bisect/seal/2"
_WITHOUT_DIGESTS: Final = "sdc-bisect/seal/1"
SUFFIX: Final = ".sdc-seal.json"
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
        guarded: what a guard knew of it; None in a seal that was made without one.
    """

    step: int
    format: str
    files: Mapping[str, tuple[int, str]]
    tensors: tuple[str, ...]
    digests: Mapping[str, SealedTensor] = field(default_factory=dict)
    guarded: Guarded | None = None

    @property
    def bytes(self) -> int:
        """Of all files."""
        return sum(size for size, _ in self.files.values())


def seal_of(path: Path) -> Path:
    """Where the seal of the checkpoint at `path` lies."""
    return path.with_name(path.name + SUFFIX)


def publish_seal(path: Path, seal: Seal) -> None:
    """Write the seal of the checkpoint at `path`, in place of one that is there.

    Raises:
        UsageError: it cannot be written.
    """
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "step": seal.step,
        "format": seal.format,
        "files": {name: list(entry) for name, entry in seal.files.items()},
        "tensors": list(seal.tensors),
        "digests": {name: one.as_dict() for name, one in seal.digests.items()},
    }
    if seal.guarded is not None:
        content["guard"] = asdict(seal.guarded)
    place = seal_of(path)
    try:
        publish_text(place, json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise UsageError(
            f"the seal cannot be written ({error.strerror})", where=str(place)
        ) from None


def seal_at(path: Path) -> Seal | None:
    """The seal of the checkpoint at `path`; None if there is none.

    Raises:
        CheckpointUnreadable: it is damaged, or of a newer version.
    """
    place = seal_of(path)
    try:
        return _parsed(json.loads(place.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointUnreadable(
            f"its seal cannot be read ({type(error).__name__})", where=str(place)
        ) from None


def _parsed(content: dict[str, Any]) -> Seal:
    if content["schema"] not in (SCHEMA, _WITHOUT_DIGESTS):
        raise ValueError("of another version")
    files = {
        str(name): (_whole(size), str(value)) for name, (size, value) in content["files"].items()
    }
    if not files or not all(_XXH3.fullmatch(value) for _, value in files.values()):
        raise ValueError("a checksum that is none")
    tensors = tuple(map(str, content["tensors"]))
    stored = content["digests"] if content["schema"] == SCHEMA else {}
    digests = {str(name): SealedTensor.of_dict(one) for name, one in stored.items()}
    guarded = Guarded.of_dict(content["guard"]) if "guard" in content else None
    step, format = _whole(content["step"]), str(content["format"])
    return Seal(step, format, files, tensors, digests, guarded)


def _whole(value: object) -> int:
    """A step, or bytes: below 2^63, as stores keep them."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError("no step or size where one belongs")
    return value
