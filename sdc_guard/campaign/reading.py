"""Reads a campaign's file: clean runs and trials, as arrays."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import duckdb
import numpy as np

from ..errors import RunFormatError, RunNotFound, UsageError
from . import tables
from .series import Floats, Shapes, SignalSeries

_SIGNALS: Final = "step, layer, norm, max_abs, zeros, nonfinite"
_CLEAN: Final = "purpose = $purpose AND model = $model AND seed = $seed"
_GROUP: Final = "model = $model AND seed = $seed AND snapshot = $snapshot AND status = 'done'"

_CLEAN_RUNS: Final = (
    "SELECT seed FROM clean_runs WHERE purpose = $purpose AND model = $model ORDER BY seed"
)
_CLEAN_LOSSES: Final = f"SELECT step, loss FROM clean_steps WHERE {_CLEAN} ORDER BY step"
_CLEAN_SIGNALS: Final = f"SELECT {_SIGNALS} FROM clean_signals WHERE {_CLEAN}"
_CLEAN_ALERTS: Final = (
    f"SELECT step, layer, detector, severity FROM clean_alerts WHERE {_CLEAN} ORDER BY ALL"
)
_GROUPS: Final = (
    "SELECT DISTINCT model, seed, snapshot FROM trials WHERE status = 'done' ORDER BY ALL"
)
_TRIALS: Final = (
    "SELECT trial, site, mix, kind, fault_step, audited, fired, changed, layers_hit, effect,"
    f" first_differs, replay_step, manifest, guard_errors FROM trials WHERE {_GROUP} ORDER BY trial"
)
_TRIAL_LOSSES: Final = (
    f"SELECT trial, step, loss FROM trial_steps JOIN trials USING (trial) WHERE {_GROUP}"
)
_TRIAL_SIGNALS: Final = (
    f"SELECT trial, {_SIGNALS} FROM trial_signals JOIN trials USING (trial) WHERE {_GROUP}"
)
_TRIAL_ALERTS: Final = (
    "SELECT trial, step, layer, detector, severity"
    f" FROM trial_alerts JOIN trials USING (trial) WHERE {_GROUP} ORDER BY ALL"
)
_FAILED: Final = (
    "SELECT min(error), count(*) FROM trials WHERE status = 'failed'"
    " GROUP BY regexp_replace(error, '[0-9]+', '', 'g') ORDER BY 2 DESC, 1"
)

Columns = dict[str, Any]


@dataclass(frozen=True)
class Said:
    """An alert of the guard's: step, layer (None for the whole step), detector, severity."""

    step: int
    layer: int | None
    detector: str
    severity: str


@dataclass(frozen=True)
class CleanRecord:
    """A run without a fault, and what the guard said all the same."""

    purpose: str
    model: str
    seed: int
    series: SignalSeries
    alerts: tuple[Said, ...]


@dataclass(frozen=True)
class TrialRecord:
    """One trial; see `tables` for the columns of the same names.

    Attributes:
        series: its steps.
        alerts: of the guard.
    """

    trial: int
    model: str
    seed: int
    snapshot: int
    site: str
    mix: str
    kind: str
    fault_step: int
    audited: bool
    fired: bool
    changed: bool
    layers_hit: frozenset[int]
    effect: str | None
    first_differs: int | None
    replay_step: int | None
    manifest: bool
    guard_errors: int
    series: SignalSeries
    alerts: tuple[Said, ...]

    @property
    def control(self) -> bool:
        """Whether nothing was injected."""
        return self.trial < 0


@dataclass(frozen=True)
class Group:
    """Trials that begin at the same state."""

    model: str
    seed: int
    snapshot: int


class CampaignFile:
    """A campaign's file, opened for reading.

    Args:
        path: of the file.

    Raises:
        RunNotFound: there is no such file.
        RunFormatError: it is not a campaign's, or of another version.
        UsageError: another process writes to it.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise RunNotFound("no campaign there", where=str(path), next_step="run one first")
        try:
            self._connection = duckdb.connect(str(path), read_only=True)
        except duckdb.IOException as error:
            if "lock" in str(error).lower():
                raise UsageError(
                    "a campaign writes to this file", where=str(path), next_step="let it end first"
                ) from error
            raise RunFormatError("not a campaign's file", where=str(path)) from error
        try:
            version, content = self._rows("SELECT version, content FROM plan")[0]
        except (duckdb.Error, IndexError) as error:
            self.close()
            raise RunFormatError("not a campaign's file", where=str(path)) from error
        if version != tables.VERSION:
            self.close()
            raise RunFormatError(
                f"a campaign of format {version}, this version reads {tables.VERSION}",
                where=str(path),
            )
        self.plan: dict[str, Any] = json.loads(content)
        rows = self._rows("SELECT model, name, shape FROM layers ORDER BY model, layer")
        self.models = tuple(dict.fromkeys(str(model) for model, *_ in rows))
        self.names = {m: [str(name) for model, name, _ in rows if model == m] for m in self.models}
        self._shapes = {
            m: tuple(tuple(shape) for model, _, shape in rows if model == m) for m in self.models
        }

    def __enter__(self) -> CampaignFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._connection.close()

    def environment(self) -> dict[str, str]:
        """Versions and machine."""
        return dict(self._rows("SELECT name, value FROM environment ORDER BY name"))

    def failed(self) -> list[tuple[str, int]]:
        """Why trials failed, and how many; what differs in a number is one."""
        return [(str(error), int(count)) for error, count in self._rows(_FAILED)]

    def clean_runs(self, purpose: str, model: str) -> Iterator[CleanRecord]:
        """The clean runs of a purpose ("calibration", "judging" or "twin"), by seed."""
        for (seed,) in self._rows(_CLEAN_RUNS, purpose=purpose, model=model):
            yield self.clean_run(purpose, model, seed)

    def clean_run(self, purpose: str, model: str, seed: int) -> CleanRecord:
        """One clean run."""
        which = {"purpose": purpose, "model": model, "seed": seed}
        losses, signals = (
            self._columns(_CLEAN_LOSSES, **which),
            self._columns(_CLEAN_SIGNALS, **which),
        )
        alerts = tuple(Said(*row) for row in self._rows(_CLEAN_ALERTS, **which))
        return CleanRecord(
            purpose, model, seed, _series(losses, signals, self._shapes[model]), alerts
        )

    def groups(self) -> list[Group]:
        """Of all trials that are done."""
        return [Group(*row) for row in self._rows(_GROUPS)]

    def trials(self, group: Group) -> list[TrialRecord]:
        """The trials of a group, controls first, with their series and alerts."""
        which = {"model": group.model, "seed": group.seed, "snapshot": group.snapshot}
        losses = self._columns(_TRIAL_LOSSES, **which)
        signals = self._columns(_TRIAL_SIGNALS, **which)
        said: dict[int, list[Said]] = {}
        for trial, *row in self._rows(_TRIAL_ALERTS, **which):
            said.setdefault(trial, []).append(Said(*row))
        shapes = self._shapes[group.model]
        found = []
        for columns in self._rows(_TRIALS, **which):
            trial, *middle, hit, effect, differs, replay, manifest, errors = columns
            site, mix, kind, fault, audited, fired, changed = middle
            series = _series(_only(losses, trial), _only(signals, trial), shapes)
            found.append(
                TrialRecord(
                    trial, group.model, group.seed, group.snapshot, site, mix, kind, fault or 0,
                    bool(audited), bool(fired), bool(changed), frozenset(hit or ()), effect,
                    differs, replay, bool(manifest), errors or 0, series,
                    tuple(said.get(trial, ())),
                )
            )  # fmt: skip
        return found

    def _rows(self, statement: str, **values: Any) -> list[tuple[Any, ...]]:
        return self._connection.execute(statement, values or None).fetchall()

    def _columns(self, statement: str, **values: Any) -> Columns:
        columns: Columns = self._connection.execute(statement, values).fetchnumpy()
        return columns


def _only(columns: Columns, trial: int) -> Columns:
    which = columns["trial"] == trial
    return {name: column[which] for name, column in columns.items()}


def _series(losses: Columns, signals: Columns, shapes: Shapes) -> SignalSeries:
    """Rows in any order as arrays; a layer without a row had no gradient."""
    steps = losses["step"]
    first = int(steps.min()) if len(steps) else 0
    count = int(steps.max()) - first + 1 if len(steps) else 0
    loss = np.full(count, np.nan)
    loss[steps - first] = _floats(losses["loss"])
    place = (signals["step"] - first, signals["layer"])

    def placed(name: str, empty: float) -> Floats:
        whole = np.full((count, len(shapes)), empty)
        whole[place] = _floats(signals[name])
        return whole

    return SignalSeries(
        first, placed("norm", np.nan), placed("max_abs", np.nan),
        placed("zeros", 0).astype(np.int64), placed("nonfinite", 0).astype(np.int64), loss, shapes,
    )  # fmt: skip


def _floats(column: Any) -> Floats:
    """A column whose nulls are NaN."""
    return np.ma.filled(np.ma.asarray(column, dtype=np.float64), np.nan)
