"""One step's evidence on its way from the device to the recorder.

What a hook measures stays on its device; a copy to the host is started without waiting, and the
evidence is read when the copy has arrived: at once on a CPU, a step or more later on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .detect.counters import CounterChange, wrong_counters
from .layer_rows import Sums
from .signals.batch_hash import folded, folded_all
from .signals.counters import CounterPair
from .signals.optimizer_audit import PendingAudit
from .signals.shadow import ShadowResult
from .signals.shared_digest import SharedDigest
from .signals.state import PendingDigests


class HostCopy:
    """A tensor's copy in host memory, ready or on its way; or what is there already."""

    __slots__ = ("_event", "_host")

    def __init__(self, values: torch.Tensor | NDArray[Any]) -> None:
        self._event: torch.cuda.Event | None = None
        self._host = values
        if isinstance(values, torch.Tensor) and values.device.type == "cuda":
            self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._host.copy_(values, non_blocking=True)
            self._event = _event_behind(torch.cuda.current_stream(values.device))

    def ready(self) -> bool:
        """Whether reading the copy would not wait."""
        return self._event is None or bool(self._event.query())  # type: ignore[no-untyped-call] # as above

    def get(self) -> torch.Tensor:
        """The copy; waits for it if it is not ready."""
        if self._event is not None:
            self._event.synchronize()
        return torch.as_tensor(self._host)

    def array(self) -> NDArray[Any]:
        """The copy as an array; waits for it if it is not ready."""
        return self._host if isinstance(self._host, np.ndarray) else self.get().numpy()

    def numbers(self) -> list[float]:
        """The copy's numbers, of one dimension; waits likewise."""
        found: list[float] = self.array().tolist()
        return found

    def content(self) -> bytes:
        """The copy's bytes; waits likewise."""
        return self.array().tobytes()


class HeldNumbers(HostCopy):
    """Numbers that are there; an array of them is made when it is asked for."""

    __slots__ = ("_numbers",)

    def __init__(self, numbers: list[float]) -> None:
        self._numbers = numbers

    def ready(self) -> bool:
        """They are."""
        return True

    def get(self) -> torch.Tensor:
        """As a float64 tensor."""
        return torch.from_numpy(self.array())

    def array(self) -> NDArray[Any]:
        """As a float64 array."""
        return np.array(self._numbers, dtype=np.float64)

    def numbers(self) -> list[float]:
        """As they are."""
        return self._numbers


class HeldRows(HostCopy):
    """Digests that are there, int64, shape (…, 3), as bytes."""

    __slots__ = ("_content",)

    def __init__(self, content: bytes) -> None:
        self._content = content

    def ready(self) -> bool:
        """They are."""
        return True

    def get(self) -> torch.Tensor:
        """As a tensor."""
        return torch.from_numpy(self.array().copy())

    def array(self) -> NDArray[Any]:
        """As an array that cannot be written to."""
        return np.frombuffer(self._content, dtype=np.int64).reshape(-1, 3)

    def content(self) -> bytes:
        """As they are."""
        return self._content


class ThreadRows(HostCopy):
    """Digests that a second thread takes, and others that are there."""

    __slots__ = ("_job", "_more")

    def __init__(self, job: SharedDigest, more: HostCopy) -> None:
        self._job, self._more = job, more

    def ready(self) -> bool:
        """Whether reading them would neither wait nor compute."""
        return self._job.done and self._more.ready()

    def get(self) -> torch.Tensor:
        """As a tensor."""
        return torch.from_numpy(self.array())

    def array(self) -> NDArray[Any]:
        """All of them; takes those that are missing."""
        rows, more = self._job.finish(), self._more.array()
        return np.concatenate([rows, more]) if len(more) else rows


def _event_behind(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """An event that comes after all that was queued on a stream by now."""
    event: torch.cuda.Event = torch.cuda.Event()  # type: ignore[no-untyped-call] # torch has no types here
    event.record(stream)
    return event


@dataclass(slots=True)  # as `BeforeStep`
class Gradients:
    """Sums of gradients on their way to the host; see `signals.measures`.

    Attributes:
        rows: places in the guard's list of layers.
        sums: float64, shape (len(rows), 5).
        reduced: whether they were measured after a reduction over ranks.
    """

    rows: list[int]
    sums: HostCopy
    reduced: bool


@dataclass(frozen=True)
class Counters:
    """Step counters at two moments, which may be in order, with the copy of their bits."""

    pair: CounterPair
    bits: HostCopy

    def wrong(self) -> list[CounterChange]:
        """Those that are not what they should be; waits for the copy."""
        bits = self.bits.array()
        unsigned = bits.view(f"u{bits.itemsize}")
        pair = self.pair
        return wrong_counters(pair.layers, unsigned, pair.dtype, pair.steps)


@dataclass(slots=True)  # frozen, it would take longer to make than what is in it
class BeforeStep:
    """What is known when the optimizer is about to apply step `step`.

    Attributes:
        scale: loss scale by which the gradients are too large; None for 1.
        found_inf: positive if a fused optimizer skips the step by itself.
        skipped: whether a gradient scaler never called the optimizer.
        applied: False if an exception ended the step before the optimizer changed anything.
        counters: as the step before left them, and as they were found.
        kept: whether the rows that it makes would survive this process.
        arrived: whether every copy is known to have.
    """

    step: int
    time: float
    step_seconds: float | None
    lr: float | None
    gradients: tuple[Gradients, ...]
    losses: HostCopy | None
    accumulation: int
    batches: tuple[HostCopy, ...]
    tokens: int | None
    digests: PendingDigests
    digest_rows: HostCopy
    scale: HostCopy | None = None
    found_inf: HostCopy | None = None
    skipped: bool = False
    applied: bool = True
    counters: tuple[Counters, ...] = ()
    kept: bool = False
    arrived: bool = False

    @property
    def batch_hash(self) -> int | None:
        """Of the batches of its micro-batches, in their order; None without any."""
        return folded_all([batch.content() for batch in self.batches])

    @property
    def loss(self) -> float | None:
        """The mean loss of the micro-batches; None where it was not observed."""
        if self.losses is None:
            return None
        values = self.losses.numbers()
        return float(sum(values) / len(values))

    def sums(self) -> list[Sums]:
        """Of all its gradients; waits for the copies."""
        return [
            Sums(np.asarray(part.rows, dtype=np.intp), part.sums.array(), part.reduced)
            for part in self.gradients
        ]

    def ready(self) -> bool:
        """Whether every copy has arrived."""
        if not self.arrived:
            copies = [self.losses, self.digest_rows, *self.batches, self.scale, self.found_inf]
            copies += [gradients.sums for gradients in self.gradients]
            if self.counters:
                copies += [counters.bits for counters in self.counters]
            self.arrived = _ready(copies)
        return self.arrived


@dataclass(slots=True)  # as above
class AfterStep:
    """What the optimizer left behind at step `step`; `kept` and `arrived` as above.

    Attributes:
        counters: as they were last found, and after its update.
    """

    step: int
    digests: PendingDigests
    digest_rows: HostCopy
    shadow: ShadowResult | None
    shadow_losses: HostCopy | None
    shadow_batch: HostCopy | None = None
    audits: tuple[tuple[PendingAudit, HostCopy], ...] = ()
    counters: tuple[Counters, ...] = ()
    kept: bool = False
    arrived: bool = False

    @property
    def shadow_hash(self) -> int | None:
        """Of the pinned batch as it was after the passes; None without tensors."""
        return None if self.shadow_batch is None else folded(self.shadow_batch.array().tobytes())

    def ready(self) -> bool:
        """Whether every copy has arrived."""
        if not self.arrived:
            copies = [self.digest_rows, self.shadow_losses, self.shadow_batch]
            if self.audits or self.counters:
                copies += [rows for _, rows in self.audits]
                copies += [counters.bits for counters in self.counters]
            self.arrived = _ready(copies)
        return self.arrived


def _ready(copies: list[HostCopy | None]) -> bool:
    return not [copy for copy in copies if copy is not None and not copy.ready()]
