"""Guard: attaches to a model and its optimizer and records evidence of every step."""

from __future__ import annotations

import atexit
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from .archive.manifest import Manifest
from .archive.save import expected_digests, save_checkpoint
from .attempt import Place, register_attempt
from .detect.alert import Alert
from .detect.carried import Key
from .errors import TrainingHalted, UsageError
from .evidence import AfterStep, BeforeStep, HostCopy
from .recorder import Recorder
from .signals.batch import batch_digest, tensors_of
from .signals.capture import CaptureRequest
from .signals.gradients import GradientCapture
from .signals.shadow import LossFunction, ShadowPass
from .signals.state import digest_state, state_tensors, written_by_forward
from .store.compactor import Compactor
from .store.sealing import seal_run
from .store.writer import Health, Writer

_log = logging.getLogger("sdc_guard")

RUN_VARIABLE = "SDC_GUARD_RUN"
Policy = Literal["record", "warn", "halt"]


class Guard:
    """Records evidence of a training run and raises alerts.

    Training with a guard is bit-identical to training without. What goes wrong inside the guard
    does not stop the training: it is told once and counted in `health`.

    Args:
        model: its parameters are the layers of the run.
        optimizer: its steps are the steps of the run.
        run: the run's folder; made if missing. The environment variable SDC_GUARD_RUN, set by
            `sdc-bisect verify`, overrides it.
        shadow: (batch, loss_fn) with loss_fn(model, batch) → scalar tensor; evaluated every
            `shadow_every` steps on the pinned batch without a trace in the training.
        shadow_every: in steps.
        first_step: number of the first step that this process runs. After resuming from the
            checkpoint of step s it is s + 1.
        policy: what an alert does: "record" it, also "warn" through logging, or also "halt" by
            raising TrainingHalted out of optimizer.step(), before that step is applied.
        on_alert: called with each Alert, under every policy.
        resume: the command that resumes this training, kept for `sdc-bisect verify --recorded`;
            `{ckpt}`, `{step}` and `{run}` are filled in there.

    Raises:
        UsageError: an unknown policy or a negative first step.
        RunFormatError: the run's folder holds another model, or a damaged run.json.
        OSError: the run's folder cannot be made.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        run: str | Path,
        shadow: tuple[Any, LossFunction] | None = None,
        shadow_every: int = 20,
        first_step: int = 0,
        policy: Policy = "warn",
        on_alert: Callable[[Alert], None] | None = None,
        resume: str | None = None,
    ) -> None:
        if policy not in ("record", "warn", "halt"):
            raise UsageError(f"no policy {policy!r}", next_step='use "record", "warn" or "halt"')
        if first_step < 0 or shadow_every < 1:
            raise UsageError("first_step must be at least 0 and shadow_every at least 1")
        self.run = Path(os.environ.get(RUN_VARIABLE) or run)
        self.health = Health()
        self._model = model
        self._optimizer = optimizer
        self._policy = policy
        self._user_callback = on_alert
        self._halting: Alert | None = None
        self._shadow = ShadowPass(*shadow) if shadow else None
        self._shadow_every = shadow_every
        self._step = first_step
        self._stepped = False
        self._clock: float | None = None
        self._losses: list[torch.Tensor] = []
        self._batches: list[HostCopy] = []
        self._tokens = 0
        self._pending: deque[BeforeStep | AfterStep] = deque()
        self._capture = CaptureRequest.from_environment()
        place = register_attempt(
            self.run, model, optimizer, first_step, resume, self._shadow, shadow_every
        )
        self._place: Place = place
        written = set(written_by_forward(model))
        self._written_by_forward = [x.id for x, _ in place.parameters if x.name in written]
        self._compactor = Compactor(self.run)
        on_segment = self._compactor.segment_published if place.rank == 0 else None
        self._writer = Writer(self.run, place.rank, self.health, on_segment)
        layers = [layer for layer, _ in place.parameters]
        self._recorder = Recorder(self._writer, place.attempt, layers, self._on_alert)
        for kind, detail in place.events:
            self._recorder.event(first_step, kind, detail)
        if place.inherited is not None:
            self._recorder.report(first_step, [place.inherited])
        self._gradients = GradientCapture(place.parameters, self.health.trouble)
        self._handles = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]
        atexit.register(self.close)

    @property
    def step(self) -> int:
        """Number of the step that runs now or, between two steps, of the next one."""
        return self._step

    def observe(self, loss: torch.Tensor, batch: Any = None) -> None:
        """Take the loss and the batch of this step, before `optimizer.step()`.

        With gradient accumulation it is called once per micro-batch: the mean loss is recorded.

        Args:
            loss: a scalar tensor; not waited for.
            batch: tensors, nested in tuples, lists and mappings; their content is hashed.
        """
        with self._safely("observing a batch"):
            self._losses.append(loss.detach().to(torch.float64).reshape(()))
            digest = batch_digest(batch)
            if digest is not None:
                self._batches.append(HostCopy(digest))
                self._tokens += next(tensors_of(batch)).numel()

    def refresh(self) -> None:
        """Tell the guard that the script has just written to parameters or optimizer state.

        Needed after load_state_dict, weight clamping and the like between two steps.
        """
        with self._safely("refreshing"):
            self._drain(wait=True)
            self._recorder.forget_state()
            self._recorder.event(self._step, "refresh", "the script wrote to the state on purpose")

    def checkpoint(self, objects: Mapping[str, Any], step: int) -> Path | None:
        """Save a checkpoint with its manifest under `run/archive`.

        It is clean only if its bytes, read back, have the digests that the trace recorded after
        this step, `step` is the step that the guard counts, and no incident is open.

        Args:
            objects: name to an object with state_dict(), or to a value that torch.load accepts
                with weights_only=True. "step" is added.
            step: number of the step whose result is saved.

        Returns:
            The checkpoint's folder, or None when it could not be written: that is logged, and
            counted in `health`; the training goes on and the last checkpoint stays in place.
        """
        with self._safely(f"saving the checkpoint of step {step}"):
            self._drain(wait=True)
            payload = {"step": step} | {
                name: value.state_dict() if hasattr(value, "state_dict") else value
                for name, value in objects.items()
            }
            state = self._state()
            expected = expected_digests(
                payload, state, self._recorder.recorded(), self._place.layer_names
            )
            folder, manifest = save_checkpoint(
                self.run / "archive",
                step,
                self._place.attempt,
                payload,
                expected,
                self._doubts(step),
                trace_step=self._step - 1 if self._stepped else step,
            )
            self._record_checkpoint(folder, manifest)
            return folder
        return None

    def flush(self, timeout: float = 30.0) -> bool:
        """Wait until all evidence so far is on disk; False when the disk refuses it."""
        self._drain(wait=True)
        return self._writer.flush(timeout)

    def close(self) -> None:
        """Write what is left, remove the hooks, seal the trace. Safe to call twice."""
        if not self._handles:
            return
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._gradients.remove()
        with self._safely("closing"):
            self._drain(wait=True)
            self._writer.close()
            self._compactor.wait()
            if self._place.rank == 0:
                seal_run(self.run)
        atexit.unregister(self.close)

    def __enter__(self) -> Guard:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _state(self) -> dict[Key, torch.Tensor]:
        """The tensors whose bits are carried from step to step."""
        tensors = state_tensors(self._place.parameters, self._optimizer)
        for layer in self._written_by_forward:
            tensors.pop(("param", layer), None)
        return tensors

    def _safely(self, where: str) -> _Safely:
        return _Safely(self.health, where)

    def _before_step(self, *_: Any) -> None:
        if self._place.owner != os.getpid():
            return  # a forked or copied process records nothing into this run
        with self._safely("recording a step"):
            live = self._state()
            if self._capture:
                self._capture.keep(self.run, self._step, "before", live)
            self._pending.append(self._evidence_before(live))
            self._drain(live=live)
        if self._halting is not None:
            alert, self._halting = self._halting, None
            self._writer.flush(5.0)
            raise TrainingHalted(
                str(alert), next_step="the policy is halt; the step is not applied"
            )

    def _after_step(self, *_: Any) -> None:
        if self._place.owner != os.getpid():
            return
        recorded = False
        with self._safely("recording a step"):
            live = self._state()
            if self._capture:
                self._capture.keep(self.run, self._step, "after", live)
            digests = digest_state(live)
            shadow = None
            with self._safely("the shadow pass"):
                shadow = self._shadow_result()
            losses = None if shadow is None else HostCopy(shadow.losses)
            self._pending.append(
                AfterStep(self._step, digests, HostCopy(digests.rows), shadow, losses)
            )
            self._drain()
            recorded = True
        if not recorded:
            self._recorder.forget_state()  # the next step has nothing true to be compared with
        self._step += 1
        self._stepped = True

    def _evidence_before(self, live: Mapping[Key, torch.Tensor]) -> BeforeStep:
        now = time.time()
        seconds, self._clock = None if self._clock is None else now - self._clock, now
        accumulation = max(self._gradients.backwards, 1)
        measured = self._gradients.take()
        losses, self._losses = self._losses, []
        batches, self._batches = tuple(self._batches), []
        tokens, self._tokens = self._tokens, 0
        lr = self._optimizer.param_groups[0].get("lr")
        digests = digest_state(dict(live))
        return BeforeStep(
            step=self._step,
            time=now,
            step_seconds=seconds,
            lr=lr if isinstance(lr, float) else None,
            layers=measured[0] if measured else (),
            measures=HostCopy(measured[1]) if measured else None,
            losses=HostCopy(torch.stack(losses)) if losses else None,
            accumulation=accumulation,
            batches=batches,
            tokens=tokens or None,
            digests=digests,
            digest_rows=HostCopy(digests.rows),
        )

    def _shadow_result(self) -> Any:
        if self._shadow is None or self._step % self._shadow_every:
            return None
        return self._shadow(self._model)

    def _drain(self, *, wait: bool = False, live: Mapping[Key, torch.Tensor] | None = None) -> None:
        """Record the evidence whose copies have arrived, in order; all of it when waiting."""
        while self._pending and (wait or self._policy == "halt" or self._pending[0].ready()):
            evidence = self._pending.popleft()
            if isinstance(evidence, AfterStep):
                self._recorder.after_step(evidence)
            else:
                tensors = live or self._state()
                self._recorder.before_step(evidence, tensors)

    def _on_alert(self, alert: Alert) -> None:
        if self._policy == "warn":
            _log.warning("SDC Guard: %s", alert)
        if self._policy == "halt" and self._halting is None:
            self._halting = alert
        if self._user_callback is not None:
            with self._safely("calling on_alert"):
                self._user_callback(alert)

    def _doubts(self, step: int) -> list[str]:
        doubts = []
        newest = self._step - 1
        if not self._stepped:
            doubts.append("no step was recorded before this checkpoint")
        elif step != newest:
            doubts.append(
                f"labelled step {step}, but the trace is at step {newest}: "
                f"give Guard(first_step=...) {step - newest:+d}"
            )
        if self._stepped and not self._recorder.recorded():
            doubts.append("the state is not the one that the last step left: not in the trace")
        if not self._writer.flush(10.0):
            doubts.append("the trace of this step is not on disk")
        incident = self._recorder.incidents.open
        if incident is not None:
            doubts.append(f"incident open since step {incident.opened}: {incident.first}")
        return doubts

    def _record_checkpoint(self, folder: Path, manifest: Manifest) -> None:
        if manifest.status != "clean" and self._policy != "record":
            reasons = "; ".join(manifest.reasons)
            _log.warning("SDC Guard: checkpoint of step %d is suspect: %s", manifest.step, reasons)
        self._recorder.checkpoint(
            manifest.step,
            path=str(folder.relative_to(self.run)),
            format="torch",
            bytes=manifest.bytes,
            status=manifest.status,
            reason="; ".join(manifest.reasons),
        )


class _Safely:
    """Keeps an error of the guard's own from reaching the training."""

    def __init__(self, health: Health, where: str) -> None:
        self._health = health
        self._where = where

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: Any, _: object) -> bool:
        if kind is None or not issubclass(kind, Exception):
            return False
        self._health.trouble(self._where, error)
        return True
