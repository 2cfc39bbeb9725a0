"""A folder of small checkpoints, and `sdc-bisect` called in this process."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from click.testing import CliRunner

from forensics.cli import main


@dataclass(frozen=True)
class Answer:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def call(*arguments: object) -> Answer:
    """sdc-bisect; what is no exit is raised."""
    done = CliRunner().invoke(main, [str(part) for part in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Answer(done.exit_code, done.stdout, done.stderr)


def made(folder: Path, steps: Iterable[int]) -> Path:
    """An archive of torch.save files."""
    folder.mkdir()
    for step in steps:
        torch.save({"step": step, "weight": torch.full((3,), float(step))}, file_of(folder, step))
    return folder


def file_of(folder: Path, step: int) -> Path:
    return folder / f"checkpoint-{step}.pt"


def counting(folder: Path, corrupt_from: int) -> list[str]:
    """A command for `run` that notes each step it judges in folder/judged."""
    script = f'echo {{step}} >> "{folder}/judged"; test {{step}} -lt {corrupt_from} # {{ckpt}}'
    return ["--", "sh", "-c", script]


def judged(folder: Path) -> list[int]:
    """The steps that such a command judged."""
    file = folder / "judged"
    return [int(line) for line in file.read_text().split()] if file.exists() else []
