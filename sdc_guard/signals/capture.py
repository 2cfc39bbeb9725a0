"""Keeping the bits of named tensors at one moment of a replay, for a comparison bit by bit."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ..detect.carried import Key
from ..digest.reference import words
from ..store.atomic import publish

VARIABLE = "SDC_GUARD_CAPTURE"


@dataclass(frozen=True)
class CaptureRequest:
    """Which tensors to keep: `tensors` are (kind, layer number), `phase` is before or after."""

    step: int
    phase: str
    tensors: tuple[Key, ...]

    def to_variable(self) -> str:
        """The value of the environment variable that asks a training process for this."""
        return json.dumps(asdict(self))

    @classmethod
    def from_environment(cls) -> CaptureRequest | None:
        """What the environment asks for, or None."""
        text = os.environ.get(VARIABLE)
        if not text:
            return None
        content = json.loads(text)
        keys = tuple((str(kind), int(layer)) for kind, layer in content["tensors"])
        return cls(int(content["step"]), str(content["phase"]), keys)

    def keep(
        self, run: Path, rank: int, step: int, phase: str, tensors: Mapping[Key, torch.Tensor]
    ) -> None:
        """Write the asked tensors if this is the moment: raw words, little end first."""
        if (step, phase) != (self.step, self.phase):
            return
        for key in self.tensors:
            if key in tensors:
                _keep_one(captured_path(run, key, rank), tensors[key])


def _keep_one(target: Path, tensor: torch.Tensor) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    content = words(tensor).cpu().numpy().tobytes()
    publish(target, lambda path: path.write_bytes(content))


def captured_path(run: Path, key: Key, rank: int) -> Path:
    """Where `rank` of the run `run` keeps the captured tensor `key`."""
    kind, layer = key
    return run / "capture" / f"rank={rank:05d}" / f"{kind}-{layer:05d}.bin"
