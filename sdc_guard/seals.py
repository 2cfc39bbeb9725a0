"""Sealing checkpoints that the script wrote by itself, beside the training."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import queue
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import torch

from .archive.sealing.judged import Key, Left
from .archive.sealing.listed import Listed, list_sealed
from .archive.sealing.make import Expected, sealed_checkpoint
from .archive.sealing.seal_file import Seal, seal_of
from .attempt import Place
from .collector import Collector
from .counter_alerts import counter_digest
from .detect.counters import KIND as COUNTER
from .digest import Digest
from .errors import SdcGuardError
from .moment import NO_STEP, STATE_NOT_LEFT, Moment
from .recorder import Recorder
from .sealed_shards import (
    EVENT,
    PATIENCE,
    PATIENCE_IN_STEP,
    Shards,
    in_detail,
    shards_of,
    whole_digests,
)
from .sealed_steps import left_at, step_that_left
from .store.run_file import Layer
from .store.writer import Writer

_log = logging.getLogger("sdc_guard")
_PATIENCE: Final = 300.0  # seconds; a disk that hangs must not keep the script from its end


@dataclass(frozen=True)
class _Done:
    """What came of sealing one checkpoint: a seal, or why there is none."""

    path: Path
    step: int
    seal: Seal | None
    why: str = ""


@dataclass(frozen=True)
class _Job:
    """One checkpoint to be sealed.

    Attributes:
        path: of it.
        expected: what it should hold.
        number: of the call; the newest of a path counts.
        late: whether the trace is to be asked what the step left.
        shards: of which this rank holds one; the traces of all ranks have the whole.
        layers: of the run's parameters, by name: what a whole tensor is like.
        ended: set when it is done.
        waited: whether the training waits for it.
    """

    path: Path
    expected: Expected
    number: int
    late: bool
    shards: Shards
    layers: Mapping[str, tuple[Layer, bool]]
    ended: threading.Event
    waited: bool


class Seals:
    """Seals for one guard; files are read and hashed by a thread of its own.

    Args:
        run: the run's folder.
        recorder: knows the digests and the incidents.
        writer: of the trace.
        warn: whether to log why a checkpoint is suspect.
    """

    def __init__(self, run: Path, recorder: Recorder, writer: Writer, *, warn: bool) -> None:
        self._run, self._recorder, self._writer = run, recorder, writer
        self._warn = warn
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._done: deque[_Done] = deque()
        self._calls: dict[Path, int] = {}  # the newest of each path
        self._newest: Seal | None = None
        self._thread: threading.Thread | None = None
        self._told: set[str] = set()
        self._sealed_here: dict[Path, None] = {}

    def seal(
        self,
        path: Path,
        now: Moment,
        *,
        wait: bool,
    ) -> Seal | None:
        """Seal what `Guard.seal` is given; what waits on disk is done later unless `wait`.

        Args:
            path: of the checkpoint, absolute.
            now: when.
            wait: for the seal.
        """
        number = self._calls[path] = self._calls.get(path, 0) + 1
        seal_of(path).unlink(missing_ok=True)  # of what was there before under this name
        place, collector = now.place, now.collector
        expected = self._expected(now)
        late = now.newest is not None and now.step < now.newest
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="sdc-guard-seals", daemon=True)
            self._thread.start()
        shards, layers = _shards(place, collector), _by_name(place, collector)
        job = _Job(path, expected, number, late, shards, layers, threading.Event(), wait)
        self._jobs.put(job)
        if not wait:
            return None
        if not job.ended.wait(_PATIENCE):
            self._tell(f"{path} is not sealed yet: the disk is stuck for {_PATIENCE:g} s")
            return None
        seal = self._newest
        self.collect()
        return seal

    def announce(self, now: Moment) -> None:
        """On another rank than 0: see to it that rank 0 finds this one's digests in the trace."""
        shards = _shards(now.place, now.collector)
        if not shards.parts:
            return
        if now.step == now.newest:
            now.complete_digests(self._recorder)
        self._recorder.event(now.step, EVENT, in_detail(shards))
        self._writer.nudge()

    def collect(self) -> None:
        """Record what is done by now; in the training's thread, which alone writes rows."""
        while self._done:
            self._record(self._done.popleft())

    def close(self) -> None:
        """Wait for what is under way, and record it."""
        if self._thread is not None:
            self._jobs.put(None)
            self._thread.join(_PATIENCE)
            if self._thread.is_alive():
                self._tell(f"checkpoints are not sealed: the disk is stuck for {_PATIENCE:g} s")
            self._thread = None
        self.collect()

    def _expected(self, now: Moment) -> Expected:
        step, newest = now.step, now.newest
        doubts, unproven = [], []
        left: dict[Key, Left] = {}
        if newest is None:
            unproven.append(NO_STEP)
        elif step > newest:
            doubts.append(now.another_label())
        elif step == newest:
            now.complete_digests(self._recorder)
            left = self._left(now.place, now.collector)
            if not self._recorder.recorded():
                doubts.append(STATE_NOT_LEFT)
        incident = self._recorder.incidents.open
        if incident is not None and incident.opened <= step:
            doubts.append(incident.doubt())
        return Expected(now.place.attempt, step, left, tuple(doubts), tuple(unproven))

    def _left(self, place: Place, collector: Collector) -> dict[Key, Left]:
        """What the newest step left, as far as this rank holds it whole."""
        recorded = self._recorder.recorded()
        if not recorded:
            return {}
        recorded |= {
            (COUNTER, number): counter_digest(bits)
            for number, (_, bits) in collector.counters.left().items()
        }
        layers = _layers(place)
        parts = _parts(place, collector)
        trained = {number for number, _, _ in collector.state.owned}
        return {
            (kind, layers[number].name): _left_of(kind, layers[number], digest, number in trained)
            for (kind, number), digest in recorded.items()
            if number in layers and (number not in parts or kind == COUNTER)
        }

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._newest = None
            if self._is_newest(job):
                done = self._sealed(job)
                if self._is_newest(job):
                    self._newest = done.seal
                    self._done.append(done)
                else:  # it may be of files that were written over, and the next one is waiting
                    with contextlib.suppress(OSError):
                        seal_of(job.path).unlink(missing_ok=True)
            job.ended.set()

    def _is_newest(self, job: _Job) -> bool:
        return self._calls[job.path] == job.number

    def _sealed(self, job: _Job) -> _Done:
        path, expected = job.path, job.expected
        try:
            if not path.exists():
                return _Done(path, expected.step, None, "no such file or folder")
            if not self._writer.flush(10.0):
                unsaved = "the trace of this step is not on disk"
                expected = replace(expected, doubts=(*expected.doubts, unsaved))
            if job.late:
                expected = self._from_trace(expected, job.shards.names)
            if job.shards.names and (expected.left or not job.late):
                expected = self._with_shards(expected, job)

            def whose(digests: Mapping[Key, Digest]) -> int | None:
                return step_that_left(
                    self._run, digests, expected.step, self._writer, patient=not job.waited,
                    parts=job.shards.names,
                )  # fmt: skip

            seal = sealed_checkpoint(path, expected, whose)
            list_sealed(self._run, Listed(path, expected.step, expected.attempt))
            self._forget_deleted(path)
        except SdcGuardError as error:
            return _Done(path, expected.step, None, error.what)
        except Exception as error:  # noqa: BLE001 - because a thread's error would be lost, and the training goes on
            why = " ".join(f"{type(error).__name__}: {error}".split())
            return _Done(path, expected.step, None, why)
        return _Done(path, expected.step, seal)

    def _forget_deleted(self, newest: Path) -> None:
        """Remove our seals of checkpoints that were deleted: a new one may take such a name."""
        self._sealed_here[newest] = None
        for path in [one for one in self._sealed_here if not one.exists()]:
            seal_of(path).unlink(missing_ok=True)
            del self._sealed_here[path]

    def _from_trace(self, expected: Expected, parts: frozenset[str]) -> Expected:
        left, unproven = left_at(self._run, expected.step, expected.attempt, parts)
        return replace(expected, left=left, unproven=(*expected.unproven, *unproven))

    def _with_shards(self, expected: Expected, job: _Job) -> Expected:
        """With what the step left of tensors that are shared out among the ranks."""
        patience = PATIENCE_IN_STEP if job.waited else PATIENCE
        found, why = whole_digests(
            self._run, expected.step, expected.attempt, job.shards, self._writer, patience
        )
        left = {
            (kind, name): _left_of(kind, job.layers[name][0], digest, job.layers[name][1])
            for (kind, name), digest in found.items()
            if name in job.layers
        }
        unproven = (*expected.unproven, why) if why else expected.unproven
        return replace(expected, left={**expected.left, **left}, unproven=unproven)

    def _record(self, done: _Done) -> None:
        place = os.path.relpath(done.path, self._run)
        if done.seal is None or done.seal.guarded is None:
            detail = {"path": place, "why": done.why}
            self._recorder.event(done.step, "not sealed", json.dumps(detail))
            self._tell(f"{done.path} is not sealed: {done.why}")
            return
        guarded = done.seal.guarded
        reasons = "; ".join(guarded.reasons)
        if guarded.status == "suspect" and self._warn:
            _log.warning("SDC Guard: checkpoint of step %d is suspect: %s", done.step, reasons)
        self._recorder.checkpoint(
            done.step,
            path=place,
            format=done.seal.format,
            bytes=done.seal.bytes,
            status=guarded.status,
            reason=reasons,
        )

    def _tell(self, line: str) -> None:
        kind = line.rpartition(":")[2]
        if kind not in self._told:
            self._told.add(kind)
            _log.warning("SDC Guard: %s; training goes on", line)


def _layers(place: Place) -> dict[int, Layer]:
    """Parameters and buffers by their number in the trace."""
    layers = {layer.id: layer for layer, _ in place.parameters}
    return layers | {buffer.layer.id: buffer.layer for buffer in place.buffers}


def _by_name(place: Place, collector: Collector) -> dict[str, tuple[Layer, bool]]:
    """Parameters and buffers, and whether the optimizers write to them."""
    trained = {number for number, _, _ in collector.state.owned}
    return {one.name: (one, number in trained) for number, one in _layers(place).items()}


def _shards(place: Place, collector: Collector) -> Shards:
    parts = _parts(place, collector)
    return shards_of(parts, collector.state.sizes(), (one for _, one in place.parameters))


def _parts(place: Place, collector: Collector) -> dict[int, str]:
    """Number and name of the layers of which this rank holds no more than a shard."""
    held = collector.state.sizes()
    sizes = {number: size for (kind, number), size in held.items() if kind == "param"}
    return {
        number: layer.name
        for number, layer in _layers(place).items()
        if number in collector.state.offsets or _is_part(layer, sizes.get(number))
    }


def _left_of(kind: str, layer: Layer, digest: Digest, trained: bool) -> Left:
    dtype = layer.dtype.removeprefix("torch.") if kind == "param" else ""
    return Left(digest, tuple(layer.shape), dtype, trained)


def _is_part(layer: Layer, size: int | None) -> bool:
    """Whether this rank holds less of a parameter than all of it, by its bytes."""
    dtype = getattr(torch, layer.dtype.removeprefix("torch."), None)
    return (
        size is not None and isinstance(dtype, torch.dtype) and size < layer.numel * dtype.itemsize
    )
