"""TensorBoard's event files: one of them, or a folder of runs."""

from __future__ import annotations

import contextlib
import os
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..delivery.extras import optional
from ..errors import LogUnreadable, UsageError
from .columns import Asked, Columns, choose
from .table import ROLES, LogTable, TableBuilder

_LOADER = "tensorboard.backend.event_processing.event_file_loader"


def event_files(folder: Path) -> dict[str, list[Path]]:
    """Event files below a folder by the folder that each lies in, "" for itself, oldest first.

    Their names begin with the time at which they were opened.
    """
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.rglob("*tfevents*")):
        if path.is_file():
            name = path.parent.relative_to(folder).as_posix()
            found.setdefault("" if name == "." else name, []).append(path)
    return found


def read_event_files(path: Path, files: dict[str, list[Path]], asked: Asked) -> list[LogTable]:
    """The scalars of each run.

    Args:
        path: what the user gave.
        files: event files by the run's name.
        asked: columns that the user named.

    Raises:
        UsageError: the library tensorboard is not installed, or a tag is not there.
        LogUnreadable: no run has anything to judge.
    """
    tables: list[LogTable] = []
    refused: list[LogUnreadable | UsageError] = []
    for run, paths in files.items():
        tags = _Tags()
        for one in paths:
            tags.read(one)
        try:
            columns = choose(tags.names, asked, str(path))
            tables.append(_table(run, columns, tags, str(path)))
        except (LogUnreadable, UsageError) as error:
            refused.append(error)
    if not tables:
        raise refused[0] if refused else LogUnreadable("no scalars in it", where=str(path))
    return tables


@dataclass
class _Tags:
    """Steps and values of each tag, in the order in which they were written."""

    names: dict[str, tuple[array[float], array[float]]] = field(default_factory=dict)

    def read(self, path: Path) -> None:
        for step, tag, value in _scalars(path):
            steps, values = self.names.setdefault(tag, (array("d"), array("d")))
            steps.append(step)
            values.append(value)

    def keyed(self, tag: str) -> dict[tuple[int, float], float]:
        """Values by the number of times that the steps had gone back before, and the step."""
        steps, values = self.names[tag]
        at = np.array(steps)
        back = np.cumsum(np.diff(at, prepend=at[:1]) < 0)
        return dict(zip(zip(back.tolist(), at.tolist(), strict=True), values, strict=True))


def _table(run: str, columns: Columns, tags: _Tags, where: str) -> LogTable:
    """Rows of what was logged for one step; tags may be logged at different steps."""
    roles = columns.as_dict()
    keyed = [tags.keyed(name) if (name := roles[role]) else {} for role in ROLES]
    # TensorBoard keeps steps by itself: they are no tag
    builder = TableBuilder("TensorBoard", Columns(**{**roles, "step": "step", "run": None}))
    for key in sorted({key for one in keyed[:2] for key in one}):
        builder.add(run, key[1], [one.get(key) for one in keyed])
    return builder.done(where)


def _scalars(path: Path) -> Iterator[tuple[int, str, float]]:
    """Step, tag and value of each scalar in one file; a record that is cut short ends it."""
    loader = optional(_LOADER, "logs")
    with _quiet():
        for event in loader.EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                scalar = _scalar(value)
                if scalar is not None:
                    yield event.step, value.tag, scalar


def _scalar(value: Any) -> float | None:
    if value.HasField("simple_value"):
        return float(value.simple_value)
    if not value.HasField("tensor") or value.metadata.plugin_data.plugin_name != "scalars":
        return None
    tensor = value.tensor
    for numbers in (tensor.float_val, tensor.double_val):
        if len(numbers) == 1:
            return float(numbers[0])
    if len(tensor.tensor_content) in (4, 8):
        kind = "<f4" if len(tensor.tensor_content) == 4 else "<f8"
        return float(np.frombuffer(tensor.tensor_content, dtype=kind)[0])
    return None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps TensorFlow silent, which tensorboard loads where it is installed."""
    before = os.environ.get("TF_CPP_MIN_LOG_LEVEL")
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TF_CPP_MIN_LOG_LEVEL"]
        else:
            os.environ["TF_CPP_MIN_LOG_LEVEL"] = before
