"""Guard: attaches to a model and its optimizer and records evidence of every step."""

from __future__ import annotations

import atexit
import json
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from .archive.sealing.seal_file import Seal
from .attached import close_earlier, close_if_alive, forget, remember
from .attempt import Place, register_attempt
from .checks.audit.excluded import told_by_ledger
from .checks.check import Checks
from .checks.chosen import checks_of
from .collector import Collector
from .consequences import Consequences
from .detached import DetachedGuard
from .detect.alert import Alert
from .detect.choice import SensorName
from .detect.sensor import FALSE_INCIDENTS
from .forks import generation
from .given import check_given
from .guard_archive import GuardArchive
from .guarded_steps import GuardedSteps
from .inject.from_environment import injector_of_environment
from .kept_evidence import room
from .moment import Moment
from .options import ArchiveFormat, Keep, Policy, check_paths, check_step, listed
from .pending import PendingEvidence
from .recorder import Recorder
from .signals.capture import CaptureRequest
from .signals.flat_shards import flat_parts
from .signals.gradient_digests import GradientDigests
from .signals.limits import NOT_BESIDE, limits
from .signals.overlap import Overlap
from .signals.rotation import Rotation
from .signals.scaling import LossScale
from .signals.shadow import LossFunction, ShadowPass
from .stepping import StepHooks
from .store.compactor import Compactor
from .store.sealing import seal_run
from .store.writer import Health, Writer
from .watching import Watching

RUN_VARIABLE = "SDC_GUARD_RUN"


class Guard(GuardedSteps):
    """Records evidence of a training run and raises alerts.

    Training with a guard is bit-identical to training without. What goes wrong inside the guard
    does not stop the training: it is told once and counted in `health`.

    Args:
        model: its parameters are the layers of the run.
        optimizer: its steps are the steps of the run. Several that step together, one after the
            other or inside of backward, are given as a sequence. Optimizers with steps of their
            own (a GAN's two) have a guard and a folder each.
        run: the run's folder; made if missing. The environment variable SDC_GUARD_RUN, set by
            `sdc-bisect verify`, overrides it.
        shadow: (batch, loss_fn) with loss_fn(model, batch) → scalar tensor; evaluated every
            `shadow_every` steps on the pinned batch without a trace in the training.
        shadow_every: in steps.
        first_step: number of the first step that this process runs. After resuming from the
            checkpoint of step s it is s + 1.
        policy: what an alert does: "record" it; also "warn" through logging; also "skip" the
            step, which then changes nothing; or "halt" by raising TrainingHalted out of
            optimizer.step(), before that step is applied. The last two wait for the device at
            each step, and hold for all ranks at once: every rank must have a guard then.
        on_alert: called with each Alert, under every policy.
        resume: the command that resumes this training, kept for `sdc-bisect verify --recorded`;
            `{ckpt}`, `{step}` and `{run}` are filled in there: the checkpoint to resume from, the
            last step, and a folder for what the script itself saves in a replay.
        scaler: the GradScaler of mixed precision, so that gradients are recorded without its
            scale and the steps that it skips are counted. Found by itself if left out, from the
            first step that it does not skip.
        digest_budget: percent of a step's time that digests of parameters and optimizer state
            may take with what follows from them, in turn through the tensors, and up to half of it
            to read the optimizers' step counters every n-th step; None for all of them at every
            step, which alone proves all changes between steps in the step where they happen.
        invariants_every: steps in which each element of Adam's state, and how far it moved its
            parameter, is once compared with what Adam's arithmetic can do; None for never.
        overlap_digests: whether a thread of its own helps to digest what a step left, at once, and
            digests alone what the next one finds, towards the end of the backward; where torch
            leaves no core free, nothing changes. Moments may be left to that thread too. What
            happens to a tensor before the first or after the second of its two readings is not
            seen: about as much of a step as one reading of everything takes, and what lies
            between backward and step. The share that is watched is recorded at the end, as the
            event "overlap". On a CUDA device the second reading is on a stream of its own, from
            three quarters of the backward on, and only for steps of one backward.
        digest_buffers: whether the model's buffers are digested, all of them after each step, and
            compared when the first forward after it begins. What happens to them from there to the
            end of the step is not watched, as a forward may write to them. A script's own write
            between the two, through .data or NumPy, needs refresh(). Where hooks are not told of
            the forward (a model compiled in place), buffers are not compared.
        digest_gradients: whether the digest of each gradient is recorded at each step, as its norm
            is: reduced, before clipping. It is taken once a backward.
        replicas_every: steps from one comparison of what several ranks hold alike to the next;
            None for never.
        peers_every: steps of which several ranks' gradients are compared together: which rank's
            norm of which layer is unlike the others'; None for never.
        verify_archive: of so many checkpoints of `checkpoint` the first is loaded into a copy of
            the model, and its shadow loss compared with the training's, bit for bit: until then it
            is untested. It needs `shadow`, memory for the copy on the model's device, and the time
            of reading the file and of four to seven forward passes. None for never; not with
            several ranks.
        audit: the loss of a micro-batch as the training computes it, the very tensor whose
            backward() the script calls, without a loss scale: audit(model, batch) → scalar
            tensor. With it some steps are run again before they are applied, and compared; each
            batch has to be given to observe(). It must not keep state where nothing can put it
            back, as in a file or an iterator. See docs/verdicts.md.
        audit_rate: probability with which a step is audited; one with an alert is in any case.
        ledger: file in which strikes against devices outlive the run, one for all runs.
        probe_every: steps from one computation of a known answer to the next; None for never.
        sensor: what judges gradients at each step: "double_centred" compares each layer with its
            own past beside what all layers did; "average_multiple" compares its norm with fixed
            multiples of its recent average.
        false_incidents: how often, as a probability per step, "double_centred" may raise alerts in
            a healthy run: its thresholds follow from that. Comparing ranks has the same budget for
            itself, and the shadow loss, a jump and a slow rise each, per evaluation. None for no
            statistical alerts; what is not finite is told all the same.
        keep: how many clean checkpoints are kept beside those that are held; after each save
            `sdc-guard keep` deletes the others in a process of its own, see docs/retention.md.
            A pair (12, 24): of the others 24 as copies of their weights alone.
            None for all of them.
        archive_format: of checkpoints. "torch" is one file of torch.save, written by each process
            that calls checkpoint(); "dcp" is that of torch.distributed.checkpoint, to which every
            rank writes its part. "auto" is "dcp" where tensors are distributed ones, and "torch"
            otherwise.

    Of several ranks each makes its own guard, after init_process_group and with the same folder.
    Rank 0 starts the run; the others wait for it here, no longer than for a collective, and no
    collective is used. A guard on rank 0 alone records rank 0 alone.

    Raises:
        UsageError: an unknown policy, a number out of its range, no optimizer, or a rank that
            waited for others in vain.
        TrainingHalted: the policy is "halt", and the ledger says to leave this device out.
        RunFormatError: the run's folder holds another model, or a damaged run.json.
        OSError: the run's folder cannot be made.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        run: str | Path,
        shadow: tuple[Any, LossFunction] | None = None,
        shadow_every: int = 20,
        first_step: int = 0,
        policy: Policy = "warn",
        on_alert: Callable[[Alert], None] | None = None,
        resume: str | None = None,
        scaler: torch.amp.GradScaler | None = None,
        digest_budget: float | None = 0.2,
        invariants_every: int | None = 2000,
        overlap_digests: bool = False,
        digest_buffers: bool = False,
        digest_gradients: bool = False,
        replicas_every: int | None = 100,
        peers_every: int | None = 20,
        verify_archive: int | None = None,
        audit: LossFunction | None = None,
        audit_rate: float = 0.001,
        ledger: str | Path | None = None,
        probe_every: int | None = 500,
        sensor: SensorName = "double_centred",
        false_incidents: float | None = FALSE_INCIDENTS,
        keep: Keep = None,
        archive_format: ArchiveFormat = "auto",
    ) -> None:
        self._optimizers = listed(optimizer)
        check_given(
            run=run,
            shadow=shadow,
            shadow_every=shadow_every,
            first_step=first_step,
            policy=policy,
            on_alert=on_alert,
            digest_budget=digest_budget,
            invariants_every=invariants_every,
            overlap_digests=overlap_digests,
            digest_buffers=digest_buffers,
            digest_gradients=digest_gradients,
            replicas_every=replicas_every,
            peers_every=peers_every,
            verify_archive=verify_archive,
            audit=audit,
            audit_rate=audit_rate,
            ledger=ledger,
            probe_every=probe_every,
            sensor=sensor,
            false_incidents=false_incidents,
            keep=keep,
            archive_format=archive_format,
        )
        replayed = os.environ.get(RUN_VARIABLE)
        self.run = Path(replayed or run).absolute()  # the script may change its working folder
        if replayed:
            digest_budget = None  # a replay is there to be compared
        close_earlier(self._optimizers, self.run)
        ledger = None if ledger is None else Path(ledger).absolute()
        told = told_by_ledger(ledger, model, halt=policy == "halt")
        self.health = Health()
        self._model = model
        self._shadow = ShadowPass(*shadow) if shadow else None
        self._shadow_every = shadow_every
        self._step = first_step
        self._stepped = self._emitted = self._closed = False
        self._told: set[str] = set()
        self._request = CaptureRequest.from_environment()
        lines, self._too_early = limits(model, self._optimizers)
        self._place: Place = register_attempt(
            self.run,
            model,
            self._optimizers,
            first_step,
            resume,
            self._shadow,
            shadow_every,
            digest_budget,
            digest_buffers=digest_buffers,
        )
        ranks = self._place.ranks
        self._consequences = Consequences(policy, on_alert, self._optimizers, ranks, self.health)
        ranks.meet(policy, wait=self._consequences.blocking)
        self._compactor = Compactor(self.run)
        on_segment = self._compactor.segment_published if self._place.rank == 0 else None
        size = room(
            len(self._place.parameters),
            budget=digest_budget,
            gradients=digest_gradients,
            buffers=len(self._place.buffers),
        )
        self._writer = Writer(self.run, self._place.rank, self.health, on_segment, size)
        self._recorder = Recorder(
            self._writer,
            self._place.attempt,
            self._notice,
            sensor,
            false_incidents,
            lambda *measured: self._checks.measured(*measured),
        )
        self._archive = GuardArchive(
            self.run,
            model,
            self._place,
            self._recorder,
            self._writer,
            self.health,
            self._tell,
            warn=policy != "record",
            replayed=bool(replayed),
            shadow=shadow,
            verify_archive=verify_archive,
            keep=keep,
            archive_format=archive_format,
        )
        lines += self._archive.untold
        self._scale = LossScale(scaler)
        gradients = GradientDigests() if digest_gradients else None
        beside = overlap_digests and not flat_parts(model)
        if overlap_digests and not beside:
            lines.append(NOT_BESIDE)
        overlap = Overlap(self.health.trouble) if beside else None
        self._collector = Collector(
            self._optimizers, self._scale, Rotation(digest_budget), gradients, overlap
        )
        self._pending = PendingEvidence(self._recorder, self._collector, self._leave_out)
        self._found: list[Alert] = []  # by checks, before the step that is open is applied
        self._checks = Checks((), self.health)
        self._watching = Watching(
            model,
            self._optimizers,
            self._collector,
            self._recorder,
            self.health,
            self._tell,
            invariants_every,
            begins=self._backward_begins,
            ended=self._backward_ended,
        )
        self._watching.attach(self._place)
        for kind, detail in self._place.events:
            self._recorder.event(first_step, kind, detail)
        for line in (*lines, *told):
            self._tell(line)
        if self._place.inherited is not None:
            self._recorder.report(first_step, [self._place.inherited])
        self._hooks = StepHooks(self._optimizers, self)
        chosen = checks_of(
            self,
            model,
            self._optimizers,
            lambda: self._collector.state,
            ranks,
            self.run,
            self._shadow,
            replicas_every=replicas_every,
            peers_every=peers_every,
            false_incidents=false_incidents,
            audit=audit,
            audit_rate=audit_rate,
            ledger=ledger,
            probe_every=probe_every,
            attempt=self._place.attempt,
            first_step=first_step,
            blocking=self._consequences.blocking,
            scale=self._scale.value,
        )
        self._checks = Checks(chosen, self.health)
        self._injector = (  # a replay shows what the training does by itself
            None if replayed else injector_of_environment(
                model, self._optimizers, self.run, first_step, lambda: self.step
            )
        )  # fmt: skip
        remember(self, self._optimizers, self.run)
        self._at_exit = atexit.register(close_if_alive, weakref.ref(self))

    @property
    def step(self) -> int:
        """Number of the step that runs now or, between two steps, of the next one."""
        if self._mine():
            with self._safely("counting a step"):
                self._settle_skipped()
        return self._step

    def observe(self, loss: torch.Tensor | float, batch: Any = None) -> None:
        """Take the loss and the batch of this step, before `optimizer.step()`.

        With gradient accumulation it is called once per micro-batch: the mean loss is recorded.

        Args:
            loss: a scalar tensor; not waited for. The plain one, not multiplied by a loss scale.
            batch: tensors, nested in tuples, lists and mappings; their content is hashed.
        """
        if not self._mine():
            return
        try:
            self._settle()
            if not (self._hooks.open and self._emitted):  # a line search evaluates once more
                self._collector.observe(loss, batch)
                self._checks.observed(self._step, loss, batch)
        except Exception as error:  # noqa: BLE001 - because the training goes on
            self.health.trouble("observing a batch", error)

    def refresh(self) -> None:
        """Tell the guard that the script has just written to parameters or optimizer state.

        Needed after load_state_dict, weight clamping and the like between two steps, and after
        parameters of the model were added or replaced.
        """
        if not self._mine():
            return
        with self._safely("refreshing"):
            self._settle()
            self._drain(wait=True)
            self._recorder.forget_state()
            self._recorder.event(self._step, "refresh", "the script wrote to the state on purpose")
            self._checks.state_written()
            self._look_again()

    def checkpoint(
        self, objects: Mapping[str, Any], step: int, *, wait: bool = True
    ) -> Path | None:
        """Save a checkpoint with its manifest under `run/archive`.

        It is clean only if its bytes, read back, have the digests that the trace recorded after
        this step, `step` is the step that the guard counts, no incident is open, and parameters,
        moments and buffers are finite.

        Of several ranks, one file is what the rank that calls it holds: under DDP, rank 0 calls it
        alone. Where tensors are distributed, or with archive_format="dcp", every rank calls it, at
        the same step, and writes its part (see docs/archive.md). Ranks at different steps, or one
        that does not come within a minute, are named, and nothing is written.

        Args:
            objects: name to an object with state_dict(), or to a value that torch.load accepts
                with weights_only=True. "step" is added.
            step: number of the step whose result is saved.
            wait: False to go on with the training once the state is copied to host memory, and
                have it written in the background, where every rank writes its part; one file is
                always waited for. Until that is done, another call with wait=False is refused
                aloud; with wait=True it waits.

        Returns:
            The checkpoint's folder, or None when it is not known yet or could not be written:
            that is logged, recorded, and counted in `health`; the training goes on and the last
            checkpoint stays in place.
        """
        if not self._mine():
            return None
        with self._safely(f"saving the checkpoint of step {step}"):
            self._settle()
            self._drain(wait=True)
            return self._archive.save(objects, self._now(step), wait=wait)
        return None

    def seal(self, path: str | Path, step: int, *, wait: bool = False) -> Seal | None:
        """Seal a checkpoint that the script has just written by itself.

        The files are read back without running anything in them, hashed, and each tensor's digest
        is compared with what the trace recorded after this step. What was found is in
        `NAME.sdc-seal.json` beside the checkpoint, and in the run. See docs/archive-gate.md.

        Call it when the files are complete, before the next step begins; of a save that goes on
        beside the training, when it is done, with the step that it is of. On ranks other than 0 it
        only sees to it that rank 0 finds this rank's digests of shards, and in a replay it does
        nothing. What goes wrong is told once, and no exception is raised.

        Args:
            path: the file, or the folder, of this one checkpoint.
            step: number of the step whose result was saved.
            wait: read the files now; by default a thread of its own does it, and `close` waits
                for it.

        Returns:
            the seal, if it was waited for and there is one.
        """
        if not self._mine() or not self._archive.seals:
            return None
        with self._safely("sealing a checkpoint"):
            check_paths(path=path)
            check_step(step)
            self._settle()
            self._drain(wait=True)
            return self._archive.seal(Path(path).absolute(), self._now(int(step)), wait=wait)
        return None

    def checkpoint_written(self, timeout: float | None = None) -> Path | None:
        """Wait for a checkpoint that is written in the background.

        Args:
            timeout: in seconds; None for as long as its own limit, half an hour.

        Returns:
            Its folder; None if there was none, it failed, or the time ran out.
        """
        return self._archive.written(timeout) if self._mine() else None

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until all evidence so far is on disk; False when the disk refuses it."""
        if self._mine():
            with self._safely("flushing"):
                self._settle()
                self._drain(wait=True)
        return self._writer.flush(timeout)

    def close(self) -> None:
        """Write what is left, remove the hooks, seal the trace. Safe to call twice."""
        if not self._hooks.attached:
            return
        with self._safely("closing"):
            self._settle()
            if self._mine():
                self._drain(wait=True)  # checks are told of the last steps while they go on
        self._closed = True
        self._hooks.remove()
        if self._injector is not None:
            self._injector.close()
        self._watching.capture.remove()
        self._collector.remove()
        if self._place.generation == generation():
            self._checks.close()
        self._consequences.step_ended()
        forget(self)
        atexit.unregister(self._at_exit)
        if self._place.generation != generation():
            return
        with self._safely("closing"):
            self._drain(wait=True)
            self._archive.close()
            if (watched := self._collector.watched) is not None:
                self._recorder.event(self._step, "overlap", json.dumps({"watched": watched}))
            self._recorder.event(self._step, "end", json.dumps({"next_step": self._step}))
            self._writer.close()
            self._compactor.wait()
            if self._place.rank == 0:
                seal_run(self.run)

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[type[DetachedGuard], tuple[()]]:
        return DetachedGuard, ()

    def _now(self, step: int) -> Moment:
        """Now, between two steps, when a checkpoint has the script's number of the last one."""
        newest = self._step - 1 if self._stepped else None
        return Moment(step, newest, self._place, self._collector)
