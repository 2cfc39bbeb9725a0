"""Which faults are due now, and what becomes of each: fired, or missed with a reason.

Nothing here raises into the training: what cannot be injected is recorded as missed, and logged.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import Final

import torch

from ..errors import InjectionError
from ..plain_json import plain
from ..signals.limits import capturing
from .checked import key_of
from .fault import Draw, Fault, InjectionRecord, Site
from .journal import Journal
from .recurrence import due, over
from .scope import Scope
from .strike import Strike, strike
from .taken import Missed, Taken

Check = Callable[[str, Fault, Draw], None]

_log = logging.getLogger("sdc_guard")

CAPTURED: Final = "a CUDA graph was being captured, and runs again without the injector"
UNTOLD: Final = (
    "no hook tells of the forward of a model that is compiled from outside: give the injector what "
    "torch.compile returned"
)


class Firing:
    """The faults of one injector, and what they did.

    Args:
        seed: of everything that a fault leaves open.
        rank: of this process.
        journal: told of what is planned, fired and missed.
        step: the number of the step that runs now.
        world: how many processes train.
        again: whether faults fire that the journal says have fired before.

    Attributes:
        plan: the faults, by their numbers.
        strikes: what was done, in order.
        missed: what was due and did not fire.
        backend: what records say, of sites that do not know better.
        untold: whether a step went by without a forward that hooks were told of.
    """

    def __init__(
        self, seed: int, rank: int, journal: Journal, step: Callable[[], int], *,
        world: int, again: bool,
    ) -> None:  # fmt: skip
        self.seed, self.rank, self.world, self.step = seed, rank, world, step
        self.plan: list[Taken] = []
        self.strikes: list[tuple[Taken, Strike]] = []
        self.missed: list[Missed] = []
        self.backend, self.untold = "eager", False
        self._open: dict[Site, list[Taken]] = {}
        self._written = 0  # of the strikes, in the journal
        self._journal, self._again = journal, again
        self._owner = os.getpid()
        self._lock = threading.RLock()  # a collective's result arrives on a thread of its own

    def take(self, fault: Fault, scope: Scope, check: Check, first_step: int) -> Taken:
        """Add a fault to the plan.

        Args:
            scope: of its site.
            check: refuses what cannot be done to the target.

        Raises:
            InjectionError: it is aimed at nothing there is, or planned already.
        """
        key = key_of(fault, self.seed)
        if any(other.key == key for other in self.plan):
            raise InjectionError(f"planned already: {fault}", next_step="give another index or bit")
        shared = scope.shared and fault.rank is None
        taken = Taken(len(self.plan), fault, key, self.step(), shared=shared)
        if scope.known:
            taken.target = scope.choose(fault, self.draw(taken))
            check(taken.target, fault, self.draw(taken))
        self.plan.append(taken)
        self._open.setdefault(fault.site, []).append(taken)
        self._note(
            "planned", taken, seed=self.seed, first_step=first_step,
            sampling=scope.sampling(fault), target=taken.target, spec=plain(asdict(fault)),
        )  # fmt: skip
        return taken

    def draw(self, taken: Taken) -> Draw:
        """What draws what a fault leaves open: the same place at each step that meets it."""
        rank = 0 if taken.shared else self.rank
        return Draw(self.seed, taken.fault.site, taken.fault.step, rank)

    def due(self, site: Site) -> list[Taken]:
        """The faults of a site that are due, and were not dealt with at this step."""
        waiting = self._open.get(site)
        if not waiting or self._owner != os.getpid():
            return []
        step = self.step()
        waiting[:] = [taken for taken in waiting if not over(taken.fault, step)]
        return [taken for taken in waiting if self._is_due(taken, step)]

    def is_due(self, taken: Taken, *, repeated: bool = False) -> bool:
        """Whether a fault is due.

        Args:
            repeated: whether it is also if it was dealt with at this step and is persistent: what
                is broken is met by each operation that uses it.
        """
        if self._owner != os.getpid():
            return False
        step = self.step()
        if repeated and taken.done == step and taken.fault.recurrence == "persistent":
            return True
        return self._is_due(taken, step)

    def _is_due(self, taken: Taken, step: int) -> bool:
        if taken.done == step or not due(taken.fault, step, self.rank, self.seed, taken.key):
            return False
        if capturing():
            self.miss(taken, CAPTURED)
            return False
        # a defect is still there after a restart, and an event is over
        recurs = self._again or taken.fault.recurrence == "persistent"
        return recurs or not self._journal.fired_before(taken.key, step)

    def fire(
        self,
        taken: Taken,
        tensor: torch.Tensor,
        name: str,
        *,
        backend: str = "",
        below: int | None = None,
    ) -> bool:
        """Inject into a tensor, in place.

        Args:
            tensor: this rank's, or a distributed one.
            name: for the record.
            backend: if it is not that of the model.
            below: see `strike`.

        Returns:
            whether something was written to.
        """
        step = self.step()
        taken.done = step
        with self._lock, self.or_missed(taken):
            struck = strike(
                tensor, name, taken.fault, self.draw(taken), number=taken.number, step=step,
                backend=backend or self.backend, note="", below=below,
            )  # fmt: skip
            if struck is None:
                return False
            self.strikes.append((taken, struck))
            if not struck.arrived:
                self._note("firing", taken, step=step, tensor=name)
            self.settle(wait=False)
            return True
        return False

    def records(self) -> list[InjectionRecord]:
        """What was injected, as far as it can be read without waiting for a device."""
        self.settle(wait=False)
        with self._lock:
            return [self._record(*pair) for pair in self.strikes[: self._written]]

    def settle(self, *, wait: bool) -> None:
        """Write what was injected into the journal, in order, as far as it has arrived."""
        with self._lock:
            while self._written < len(self.strikes):
                taken, struck = self.strikes[self._written]
                if not (wait or struck.arrived):
                    return
                with self.or_missed(taken):
                    record = self._record(taken, struck)
                    self._written += 1
                    with self._disk_may_fail():
                        self._journal.fired(taken.key, record)
                    continue
                del self.strikes[self._written]

    def miss(self, taken: Taken, reason: str, at: int | None = None) -> None:
        """Record that a fault which was due could not fire, now or at another step."""
        fault, step = taken.fault, self.step() if at is None else at
        taken.done = step
        name = taken.target or fault.tensor
        if any(x.fault == taken.number and x.reason == reason for x in self.missed):
            return  # once is enough for what recurs
        missed = Missed(taken.number, fault.site, name, step, self.rank, reason)
        self.missed.append(missed)
        _log.warning(
            "SDC Guard: fault %d (%s) of step %d did not fire: %s",
            taken.number, fault.site, step, reason,
        )  # fmt: skip
        content = asdict(missed)
        del content["fault"], content["rank"]
        self._note("missed", taken, **content)

    def revert(
        self, tensors: Mapping[Site, Callable[[str], torch.Tensor]]
    ) -> list[tuple[InjectionRecord, tuple[int, ...]]]:
        """Put words back, the newest first, where they still are what was injected.

        Args:
            tensors: of each site that lasts, what gives a tensor by name.

        Returns:
            the records of which words were left alone, with the indices of those.
        """
        self.settle(wait=True)
        left = []
        for taken, struck in reversed(self.strikes):
            if (tensor := tensors.get(taken.fault.site)) is not None:
                alone = struck.plan.revert(tensor(struck.name))
                if alone:
                    left.append((self._record(taken, struck), alone))
        return left[::-1]

    def close(self, first_step: int) -> None:
        """Read and write down everything, and say what never was due or had nothing to hit."""
        self.settle(wait=True)
        for taken in self.plan:
            rank = taken.fault.rank
            if self.rank == 0 and rank is not None and rank >= self.world:
                there = f"{self.world} processes train" if self.world > 1 else "one process trains"
                self.miss(taken, f"there is no rank {rank}: {there}", taken.fault.step)
            elif taken.done is None and rank in (None, self.rank):
                self.miss(taken, self._why_not(taken, first_step), taken.fault.step)

    def _why_not(self, taken: Taken, first_step: int) -> str:
        fault = taken.fault
        if self._journal.fired_before(taken.key, fault.step):
            return "the journal says that it fired before"
        if fault.step >= self.step():
            return f"the training ended before step {fault.step} did"
        if (fault.step if fault.recurrence == "once" else fault.until or first_step) < first_step:
            return f"it was over before step {first_step}, where this process began"
        if over(fault, taken.added):
            return f"it was over before step {taken.added}, at which it was added"
        if fault.recurrence == "intermittent":
            return "no step drew it"
        if self.untold and fault.site not in ("activation", "output_gradient"):
            return UNTOLD
        return (
            f"{taken.target} took no part in a training forward, or the code that it is in was "
            "compiled before the injector was attached"
        )

    @contextmanager
    def or_missed(self, taken: Taken) -> Iterator[None]:
        """Within it, what goes wrong is the fault's miss, and nothing that the training sees."""
        try:
            yield
        except InjectionError as error:
            self.miss(taken, str(error))
        except Exception as error:  # noqa: BLE001 - because the training goes on
            self.miss(taken, f"{type(error).__name__}: {error}")

    def _record(self, taken: Taken, struck: Strike) -> InjectionRecord:
        return InjectionRecord(
            taken.number, taken.fault.site, struck.step, self.rank, self.seed, struck.name,
            struck.touched(), struck.backend, struck.note,
        )  # fmt: skip

    def _note(self, event: str, taken: Taken, **content: object) -> None:
        with self._disk_may_fail():
            self._journal.note(event, fault=taken.number, key=taken.key, rank=self.rank, **content)

    @contextmanager
    def _disk_may_fail(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            _log.warning("SDC Guard: the injection journal cannot be written: %s", error)
