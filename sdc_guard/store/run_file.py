"""run.json: what a run is, which layers it has, and when it was started."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..errors import RunFormatError, RunNotFound
from .atomic import publish_text
from .schema import FORMAT_VERSION


@dataclass(frozen=True)
class Layer:
    """A named parameter or buffer. `id` is its number in the tables, the same for the whole run."""

    id: int
    name: str
    aliases: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str
    numel: int


@dataclass(frozen=True)
class Attempt:
    """One start of the training process.

    Attributes:
        attempt: its number, 1 for the first.
        first_step: the first step that it runs.
        started: seconds since the epoch.
        environment: fingerprint of what it ran on.
        digest_budget: percent of a step's time that digests may take, so that each step's are of
            a part of the state; None: of every tensor at every step.
    """

    attempt: int
    first_step: int
    started: float
    environment: dict[str, Any] = field(default_factory=dict)
    digest_budget: float | None = None


@dataclass(frozen=True)
class RunFile:
    """The content of run.json.

    `resume` is the command by which the training script resumes, with `{ckpt}`, `{step}` and
    `{run}` to be filled in. It is shown to the reader and never run without being asked for.
    `layers` are parameters; `buffers` those of the model, numbered with them, if their digests
    were asked for.
    """

    name: str
    world_size: int
    layers: tuple[Layer, ...]
    attempts: tuple[Attempt, ...] = ()
    resume: str | None = None
    shadow: dict[str, Any] | None = None
    format: int = FORMAT_VERSION
    buffers: tuple[Layer, ...] = ()

    @property
    def named(self) -> tuple[Layer, ...]:
        """Parameters and buffers: all that a row of the tables may be about."""
        return self.layers + self.buffers

    def layer_names(self) -> dict[int, str]:
        """Number to name, of parameters and buffers."""
        return {layer.id: layer.name for layer in self.named}

    def with_layers(self, layers: Sequence[Layer], buffers: Sequence[Layer] = ()) -> RunFile:
        """The same run with these layers and buffers too; numbers that are there stay.

        Raises:
            RunFormatError: a layer has another shape or dtype now. A buffer may.
        """
        merged = merge_layers(self.layers, layers, beside=self.buffers)
        known = {buffer.name for buffer in self.buffers}
        first = _free_number((*merged, *self.buffers))
        new = [buffer for buffer in buffers if buffer.name not in known]
        numbered = [replace(buffer, id=first + place) for place, buffer in enumerate(new)]
        return replace(self, layers=merged, buffers=(*self.buffers, *numbered))

    def environment(self, attempt: int | None = None) -> dict[str, Any]:
        """The environment of an attempt, by default of the newest."""
        chosen = [item for item in self.attempts if attempt in (None, item.attempt)]
        return chosen[-1].environment if chosen else {}

    @property
    def first_steps(self) -> dict[int, int]:
        """The first step of each attempt, by its number."""
        return {item.attempt: item.first_step for item in self.attempts}

    def with_attempt(self, attempt: Attempt) -> RunFile:
        """The same run, started once more."""
        return replace(self, attempts=(*self.attempts, attempt))

    def write(self, run: Path) -> None:
        """Replace run.json in the folder `run`, atomically."""
        publish_text(run / "run.json", json.dumps(self._content(), indent=1) + "\n")

    def to_text(self) -> str:
        """The content as one line of JSON, the same for the same content."""
        return json.dumps(self._content(), sort_keys=True)

    def _content(self) -> dict[str, Any]:
        content = asdict(self)
        if not self.buffers:  # releases that do not know the key read the other runs
            del content["buffers"]
        return content

    @classmethod
    def of_text(cls, text: str | bytes) -> RunFile:
        """The way back from `to_text`."""
        return cls._parse(json.loads(text), Path("run.json"))

    @classmethod
    def read(cls, run: Path) -> RunFile:
        """Read the description of the run in the folder `run`.

        Raises:
            RunNotFound: no such folder, an empty one, or one without run.json.
            RunFormatError: run.json is damaged or of a newer format.
        """
        if not run.is_dir():
            raise RunNotFound(
                "no run folder there",
                where=str(run),
                next_step="give the folder that was passed to Guard(run=...)",
            )
        path = run / "run.json"
        if not path.is_file():
            what = "this folder is empty" if not any(run.iterdir()) else "no guard recorded here"
            raise RunNotFound(
                what,
                where=str(run),
                next_step="a recorded run has a run.json; attach Guard(model, optimizer, run=...)",
            )
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            return cls._parse(content, path)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise RunFormatError(
                f"run.json cannot be read ({error})",
                where=str(path),
                next_step="restore it from a copy of the run's folder",
            ) from None

    @classmethod
    def _parse(cls, content: dict[str, Any], path: Path) -> RunFile:
        if content["format"] > FORMAT_VERSION:
            raise RunFormatError(
                f"run format {content['format']} is newer than {FORMAT_VERSION}",
                where=str(path),
                next_step="update SDC Guard",
            )
        layers, buffers = (
            tuple(
                Layer(**{**row, "aliases": tuple(row["aliases"]), "shape": tuple(row["shape"])})
                for row in rows
            )
            for rows in (content["layers"], content.get("buffers", ()))
        )
        attempts = tuple(Attempt(**row) for row in content["attempts"])
        numbers = [number for layer in layers + buffers for number in (layer.id, layer.numel)]
        numbers += [n for attempt in attempts for n in (attempt.attempt, attempt.first_step)]
        if not all(isinstance(number, int) for number in numbers):
            raise TypeError("a layer or an attempt has a number that is none")
        if not all(
            isinstance(attempt.started, int | float)
            and isinstance(attempt.digest_budget, int | float | None)
            for attempt in attempts
        ):
            raise TypeError("an attempt has a start or a digest budget that is no number")
        read = {"layers": layers, "buffers": buffers, "attempts": attempts}
        return cls(**{**content, **read})


def _free_number(named: Sequence[Layer]) -> int:
    return 1 + max((layer.id for layer in named), default=-1)


def merge_layers(
    known: Sequence[Layer], now: Sequence[Layer], beside: Sequence[Layer] = ()
) -> tuple[Layer, ...]:
    """Keep the numbers of layers already known by name, number the new ones after them.

    Args:
        known, now: the layers until now, and those of the model.
        beside: what else has a number.

    Raises:
        RunFormatError: a name has another shape or dtype now, so this is another model.
    """
    by_name = {layer.name: layer for layer in known}
    merged = list(known)
    for layer in now:
        old = by_name.get(layer.name)
        if old is None:
            merged.append(replace(layer, id=_free_number((*merged, *beside))))
        elif (old.shape, old.dtype) != (layer.shape, layer.dtype):
            raise RunFormatError(
                f"the run folder holds another model: {layer.name} was {old.dtype} "
                f"{list(old.shape)} and is {layer.dtype} {list(layer.shape)}",
                next_step="give this run a folder of its own",
            )
    return tuple(merged)
