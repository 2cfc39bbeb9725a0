"""Checkpoints that every rank writes its part of, in the background if that is asked for."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
import xxhash

from .archive.other_step import Steps
from .archive.save import new_partial
from .archive.sharded.meeting import Arrival, Meeting, NotSaved
from .archive.sharded.pieces import At, Given, given, with_traced_digests
from .archive.sharded.protocol import LIMIT, Outcome, Part, write_part
from .archive.sharded.staging import Stager
from .attempt import Place
from .detect.carried import Key
from .digest import Digest
from .errors import SdcGuardError
from .ranks import Ranks
from .recorder import Recorder
from .signals.finite import not_finite_buffers
from .signals.layout import layout
from .signals.state import CarriedState
from .steps_around import steps_around
from .store.run_file import RunFile
from .store.writer import Writer

_log = logging.getLogger("sdc_guard")

PATIENCE = 60.0  # seconds to wait for another rank at a checkpoint
AT_END = 300.0  # seconds that the end of a training waits for the last one
_EVENT: Final = "checkpoint not saved"


@dataclass(frozen=True)
class Snapshot:
    """The state at a checkpoint, not copied yet.

    Attributes:
        payload: what is saved, nested.
        step, newest: the script's number, and the guard's own; None before the first step.
        state: that is carried from step to step.
        tensors: its tensors and counters, as this rank holds them.
        recorded: the digests that the trace has of them.
        doubts: why the checkpoint is not clean.
    """

    payload: Mapping[str, Any]
    step: int
    newest: int | None
    state: CarriedState
    tensors: Mapping[Key, torch.Tensor]
    recorded: Mapping[Key, Digest]
    doubts: list[str]


class ShardedCheckpoints:
    """The checkpoints of one guard among several ranks.

    Args:
        run: the run's folder.
        model: for its buffers and its layout.
        recorder, writer: of the trace.
        ranks: of the run.
        warn: whether to log why a checkpoint is not clean.
        committed: called on rank 0, in a thread, when a checkpoint has its name.
    """

    def __init__(
        self,
        run: Path,
        model: torch.nn.Module,
        recorder: Recorder,
        writer: Writer,
        ranks: Ranks,
        *,
        warn: bool,
        committed: Callable[[], None],
    ) -> None:
        self._committed = committed
        self._run, self._model, self._warn = run, model, warn
        self._recorder, self._writer = recorder, writer
        size = ranks.world_size if ranks.connected else 1
        self._meeting = Meeting(ranks.rank if size > 1 else 0, size, ranks.client, ranks.key)
        self._rank = ranks.rank
        self._stager = Stager()
        self._thread: threading.Thread | None = None
        self._step = 0  # that is being written, or was last
        self._outcome: Outcome | None = None

    def save(self, snapshot: Snapshot, place: Place, *, wait: bool) -> Path | None:
        """Copy the state, agree with the other ranks, and write; returns the folder if it waits.

        Raises:
            NotSaved: the ranks do not agree, or what `wait` waits for failed.
        """
        if wait:
            self.wait(LIMIT)
        part, trouble = None, ""
        busy = self._step if self._writing else None
        if busy is None:
            try:
                part = self._copied(snapshot, place)
            except Exception as error:  # noqa: BLE001 - because the others wait to hear of it
                trouble = f"{type(error).__name__}: {' '.join(str(error).split())}"
        name = new_partial(self._run / "archive", snapshot.step).name
        arrival = Arrival(snapshot.step, snapshot.newest, place.attempt, name, busy, trouble)
        try:
            save = self._meeting.agree(arrival, PATIENCE)
        except Exception as error:  # because it is raised again
            why = error.what if isinstance(error, NotSaved) else f"{type(error).__name__}: {error}"
            self._record_failure(snapshot.step, why, kept=False)
            raise
        assert part is not None  # else this rank said why not
        self._start(replace(part, save=save, number=self._meeting.number), racing=not wait)
        if not wait:
            return None
        folder = self.wait(LIMIT + PATIENCE)
        if folder is None:
            why = "" if self._outcome is None else self._outcome.error
            raise NotSaved(why or "it is not written in time")
        return folder

    def wait(self, timeout: float | None = None) -> Path | None:
        """Wait for what is written in the background; the folder, if it was committed."""
        if self._thread is not None:
            self._thread.join(LIMIT + PATIENCE if timeout is None else timeout)
        return None if self._writing or self._outcome is None else self._outcome.folder

    def close(self) -> None:
        """Wait for what is written in the background, no longer than AT_END."""
        self.wait(AT_END)
        if self._writing:
            self._record_failure(self._step, "the training ended before it was written", kept=False)

    @property
    def _writing(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def _copied(self, snapshot: Snapshot, place: Place) -> Part:
        """This rank's part, whose name the ranks have yet to agree on."""
        found = given(snapshot.payload, {buffer.data_ptr() for buffer in self._model.buffers()})
        pieces = with_traced_digests(
            found.pieces, found.tensors, snapshot.tensors, snapshot.recorded, place.layer_names
        )
        newest = snapshot.step if snapshot.newest is None else snapshot.newest
        doubts = (*snapshot.doubts, *found.doubts, *not_finite_buffers(self._model))
        return Part(
            self._run / "archive", snapshot.step, newest, place.attempt, "", 0, pieces,
            self._stager.stage(found.tensors, found.values), _trained(found, snapshot.state),
            found.paths, found.placements, doubts, layout(self._model),
            lambda: self._environment(place.attempt),
        )  # fmt: skip

    def _start(self, part: Part, *, racing: bool) -> None:
        self._step, self._outcome = part.step, None
        self._thread = threading.Thread(
            target=self._write, args=(part, racing), name="sdc-guard-checkpoint", daemon=True
        )
        self._thread.start()

    def _write(self, part: Part, racing: bool) -> None:
        outcome = self._outcome = self._written(part, racing=racing)
        if outcome.folder is None:
            self._record_failure(part.step, outcome.error, kept=True)
        elif outcome.manifest is not None:
            self._record(outcome)
            self._committed()

    def _written(self, part: Part, *, racing: bool) -> Outcome:
        """Write a part; `racing` if the training goes on meanwhile."""
        if not self._writer.flush(10.0):
            unsafe = "the trace of this step is not on disk"
            part = replace(part, doubts=(*part.doubts, unsafe))

        def around() -> Steps:
            return steps_around(
                self._run, self._rank, part.trace_step, part.attempt, self._writer, patient=racing
            )

        return write_part(part, self._meeting, around)

    def _environment(self, attempt: int) -> str:
        """A hash of what run.json says of an attempt's environment; "" if it says nothing."""
        try:
            attempts = RunFile.read(self._run).attempts
        except SdcGuardError:
            return ""
        said = [one.environment for one in attempts if one.attempt == attempt]
        return xxhash.xxh3_64_hexdigest(json.dumps(said, sort_keys=True).encode())

    def _record(self, outcome: Outcome) -> None:
        manifest, folder = outcome.manifest, outcome.folder
        if manifest is None or folder is None:
            return
        reasons = "; ".join(manifest.reasons)
        if manifest.status != "clean" and self._warn:
            told = manifest.step, manifest.status, reasons
            _log.warning("SDC Guard: checkpoint of step %d is %s: %s", *told)
        for note in manifest.notes if self._warn else ():
            _log.info("SDC Guard: checkpoint of step %d: %s", manifest.step, note)
        self._recorder.checkpoint(
            manifest.step,
            kept=True,
            path=str(folder.relative_to(self._run)),
            format=manifest.format,
            bytes=manifest.bytes,
            status=manifest.status,
            reason=reasons,
        )

    def _record_failure(self, step: int, reason: str, *, kept: bool) -> None:
        """Told in the log as well, if nobody waits for it."""
        if kept:
            _log.warning("SDC Guard: checkpoint of step %d is not saved: %s", step, reason)
        detail = json.dumps({"step": step, "reason": reason})
        self._recorder.event(step, _EVENT, detail, kept=kept)
        self._writer.nudge()


def _trained(found: Given, state: CarriedState) -> tuple[At, ...]:
    """The pieces that are trained parameters, and their optimizers' state."""
    held = {
        tensor.data_ptr()
        for key, tensor in state.tensors().items()
        if (parameter := state.parameter(key)) is not None and parameter.requires_grad
    }
    return tuple(at for at, t in found.tensors.items() if t.numel() and t.data_ptr() in held)
