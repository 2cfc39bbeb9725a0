"""Saving a checkpoint with the proof that it holds what was trained."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from .archive.manifest import Manifest
from .archive.other_step import Steps
from .archive.retention.keeper import Keeper
from .archive.save import expected_digests, save_checkpoint, shards_in, uncompared
from .attempt import Place
from .counter_alerts import counter_digest
from .detect.counters import KIND as COUNTER
from .errors import SdcGuardError
from .moment import NO_STEP, STATE_NOT_LEFT, Moment
from .options import ArchiveFormat
from .recorder import Recorder
from .sharded_checkpoints import ShardedCheckpoints, Snapshot
from .signals.finite import not_finite, not_finite_buffers
from .steps_around import steps_around
from .store.writer import Writer

_log = logging.getLogger("sdc_guard")


class Checkpoints:
    """The archive of one guard.

    Args:
        run: the run's folder.
        model: whose buffers are looked at; its parameters come with the collector.
        recorder: knows the digests and the incidents.
        writer: of the trace.
        warn: whether to log why a checkpoint is suspect.
        keeper: told of each save, to delete those that are not kept; None to keep all.
        archive_format: see `Guard`.
    """

    def __init__(
        self,
        run: Path,
        model: torch.nn.Module,
        recorder: Recorder,
        writer: Writer,
        *,
        warn: bool,
        keeper: Keeper | None = None,
        archive_format: ArchiveFormat = "torch",
    ) -> None:
        self._run, self._model = run, model
        self._recorder, self._writer = recorder, writer
        self._warn, self._keeper, self._format = warn, keeper, archive_format
        self._several: ShardedCheckpoints | None = None

    def save(
        self,
        objects: Mapping[str, Any],
        now: Moment,
        *,
        wait: bool = True,
    ) -> Path | None:
        """Save what `Guard.checkpoint` is given; returns the folder, if it is known by then.

        Args:
            objects: by name.
            now: when.
            wait: for files of several ranks to be written.

        Raises:
            OSError, RuntimeError: as the file system or torch.save gave it.
            NotSaved: the ranks do not agree, or one of them could not write its part.
        """
        step, newest, place, collector = now.step, now.newest, now.place, now.collector
        now.complete_digests(self._recorder)
        payload = {"step": step} | {
            name: value.state_dict() if hasattr(value, "state_dict") else value
            for name, value in objects.items()
        }
        counters = collector.counters.left()
        state = collector.state.tensors() | {
            (COUNTER, n): held for n, (held, _) in counters.items()
        }
        recorded = self._recorder.recorded() | {
            (COUNTER, n): counter_digest(bits) for n, (_, bits) in counters.items()
        }
        if self._is_sharded(payload):
            doubts = self._doubts(now)
            snapshot = Snapshot(payload, step, newest, collector.state, state, recorded, doubts)
            return self._sharded(place).save(snapshot, place, wait=wait)
        if not self._writer.flush(10.0):
            doubts_of_disk = ["the trace of this step is not on disk"]
        else:
            doubts_of_disk = []
        expected = expected_digests(payload, state, recorded, place.layer_names)
        folder, manifest = save_checkpoint(
            self._run / "archive",
            step,
            place.attempt,
            payload,
            expected,
            [
                *self._doubts(now),
                *doubts_of_disk,
                *shards_in(payload),
                *not_finite(collector.state, place.layer_names),
                *not_finite_buffers(self._model),
            ],
            trace_step=step if newest is None else newest,
            untested=uncompared(expected.values()),
            around=lambda: self._around(step if newest is None else newest, place),
        )
        self._record(folder, manifest)
        self._committed()
        return folder

    def wait(self, timeout: float | None = None) -> Path | None:
        """Wait for what is written in the background; the folder, if it was committed."""
        return None if self._several is None else self._several.wait(timeout)

    def close(self) -> None:
        """Wait for what is written in the background, and for what deletes, within bounds."""
        if self._several is not None:
            self._several.close()
        if self._keeper is not None:
            self._keeper.wait()

    def _is_sharded(self, payload: Mapping[str, Any]) -> bool:
        if self._format == "auto":
            return bool(shards_in(payload))
        return self._format == "dcp"

    def _sharded(self, place: Place) -> ShardedCheckpoints:
        if self._several is None:
            self._several = ShardedCheckpoints(
                self._run, self._model, self._recorder, self._writer, place.ranks,
                warn=self._warn, committed=self._committed,
            )  # fmt: skip
        return self._several

    def _committed(self) -> None:
        if self._keeper is not None:
            try:
                self._keeper.saved()
            except OSError as error:
                _log.warning("SDC Guard: no checkpoint is deleted: %s", error)

    def _doubts(self, now: Moment) -> list[str]:
        doubts = []
        if now.newest is None:
            doubts.append(NO_STEP)
        elif now.step != now.newest:
            doubts.append(now.another_label())
        if now.newest is not None and not self._recorder.recorded():
            doubts.append(STATE_NOT_LEFT)
        incident = self._recorder.incidents.open
        if incident is not None:
            doubts.append(incident.doubt())
        return doubts

    def _around(self, step: int, place: Place) -> Steps:
        """What the steps around a step left, as far as that can be told at once."""
        try:
            return steps_around(
                self._run, place.rank, step, place.attempt, self._writer, patient=False
            )
        except SdcGuardError:
            return {}

    def _record(self, folder: Path, manifest: Manifest) -> None:
        reasons = "; ".join(manifest.reasons)
        if manifest.status != "clean" and self._warn:
            told = manifest.step, manifest.status, reasons
            _log.warning("SDC Guard: checkpoint of step %d is %s: %s", *told)
        self._recorder.checkpoint(
            manifest.step,
            path=str(folder.relative_to(self._run)),
            format="torch",
            bytes=manifest.bytes,
            status=manifest.status,
            reason=reasons,
        )
