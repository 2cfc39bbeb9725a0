"""The plan: how often to save, how many to keep and which, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from ...errors import UsageError
from .inputs import Inputs
from .intervals import Interval, choose, in_domain, lost_work, useful_share
from .latency import Array
from .spacing import MOST, ages, best_count, excess, mean_excess, possible_count
from .units import GB, HOUR, MONTH, bytes_text, share_text, time_text

_SHORTEST: Final = 1e-3  # seconds from save to save


@dataclass(frozen=True)
class Failures:
    """Failures that are seen at once, and the recovery from one. Seconds, unless told.

    Attributes:
        mtbf: mean time between two of the whole system.
        detect, restart, load: parts of the recovery until the training runs again.
        pending: how long a snapshot is not a checkpoint yet, for want of a complete write.
        replay: work that has to be done again, the mean.
        useful: share of the wall time that becomes work which stays.
        stalled: share of the wall time in which the training waits for checkpoints that stay.
    """

    mtbf: float
    detect: float
    restart: float
    load: float
    pending: float
    replay: float
    useful: float
    stalled: float

    @property
    def until_running(self) -> float:
        """Recovery without the work that is done again."""
        return self.detect + self.restart + self.load

    @property
    def total(self) -> float:
        """Recovery until the work is where it was."""
        return self.until_running + self.replay


@dataclass(frozen=True)
class Keeping:
    """What is kept against corruption.

    Attributes:
        best: K*, at which storage and lost work cost least, were saves as frequent as one likes.
        possible: what is left of it at this interval.
        ages: of what is kept, right after a save, seconds; see `spacing.ages`.
        excess: mean age of the checkpoint that is gone back to, less the latency, seconds.
        least_excess: (∫√f)²/2K of as many, seconds.
        uncovered: share of the corruptions older than everything that is kept.
    """

    best: float
    possible: float
    ages: Array
    excess: float
    least_excess: float
    uncovered: float

    @property
    def count(self) -> int:
        """How many are kept, the newest among them."""
        return int(self.ages.size)


@dataclass(frozen=True)
class Cache:
    """What a cache of checkpoints near the devices saves. Seconds and dollars.

    Attributes:
        load: how long a load from it takes.
        saved: of the recovery from each failure; negative where it is slower.
        dollars: saved in a month.
        fits: how many checkpoints; None where its size is not known.
    """

    load: float
    saved: float
    dollars: float
    fits: int | None


@dataclass(frozen=True)
class Costs:
    """Dollars a month."""

    storage: float
    stalls: float
    failures: float
    corruption: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.storage + self.stalls + self.failures + self.corruption


@dataclass(frozen=True)
class Plan:
    """A plan. `writing` is how long a write takes, `rollback` what a corruption costs: seconds."""

    inputs: Inputs
    writing: float
    interval: Interval
    interval_steps: int | None
    failures: Failures
    keeping: Keeping
    rollback: float
    cache: Cache | None
    costs: Costs
    notes: tuple[str, ...]

    @property
    def dollars_each(self) -> float:
        """What keeping one checkpoint costs a month."""
        return self.inputs["size"] / GB * self.inputs["price"]

    @property
    def waits(self) -> bool:
        """Whether the training stands still for the whole write."""
        return "stall" not in self.inputs.values


def make_plan(inputs: Inputs) -> Plan:
    """The plan for these inputs.

    Raises:
        UsageError: a period that is too short for its checkpoint, or more than a million
            checkpoints to keep.
    """
    writing = inputs["size"] / inputs["write"]
    interval, steps = _interval(inputs, writing)
    failures = _failures(inputs, writing, interval)
    keeping = _keeping(inputs, interval)
    dollars = inputs["devices"] * inputs["device_hour"] / HOUR  # a second
    rollback = inputs.latency.mean + keeping.excess + failures.load + failures.restart
    costs = Costs(
        storage=keeping.count * inputs["size"] / GB * inputs["price"],
        stalls=failures.stalled * dollars * MONTH,
        failures=(1 - failures.useful - failures.stalled) * dollars * MONTH,
        corruption=inputs["incidents"] * rollback * dollars,
    )
    plan = Plan(
        inputs, writing, interval, steps, failures, keeping, rollback,
        _cache(inputs, failures, interval, dollars), costs, (),
    )  # fmt: skip
    return replace(plan, notes=tuple(_notes(plan)))


def _interval(inputs: Inputs, writing: float) -> tuple[Interval, int | None]:
    stall = inputs.get("stall")
    waiting = writing if stall is None else stall
    mtbf = inputs["mtbf"] / inputs["devices"]
    try:
        found = choose(waiting, mtbf, writing, inputs.get("every"))
    except ValueError:
        needed = inputs["size"] / inputs["every"]
        raise UsageError(
            f"a checkpoint takes {time_text(writing)} to write, which is too long for this period",
            where=f"--every {time_text(inputs['every'])}",
            next_step=f"write faster than {bytes_text(needed, '/s')}, or save less often",
        ) from None
    step = inputs.get("step_time")
    if found.period < _SHORTEST and step is None:
        raise UsageError(
            "the best period is shorter than a millisecond",
            next_step="check --size, --write, --stall and --mtbf, or give --step-time",
        )
    if step is None:
        return found, None
    # whole steps: the nearest number that is long enough for the write
    steps = max(1, round(found.work / step))
    if steps * step + waiting < writing:
        steps += 1
    return Interval(steps * step, waiting, found.optimum, found.least, found.fixed), steps


def _failures(inputs: Inputs, writing: float, interval: Interval) -> Failures:
    mtbf = inputs["mtbf"] / inputs["devices"]
    pending = writing if "stall" in inputs.values else 0.0
    load = inputs["size"] / inputs["load"]
    recovery = inputs["detect"] + inputs["restart"] + load
    useful = useful_share(interval.work, interval.stall, mtbf, recovery, pending)
    return Failures(
        mtbf, inputs["detect"], inputs["restart"], load, pending,
        lost_work(interval.period, mtbf, pending), useful,
        useful * interval.stall / interval.work,
    )  # fmt: skip


def _keeping(inputs: Inputs, interval: Interval) -> Keeping:
    work = inputs["devices"] * inputs["device_hour"] / HOUR
    each = inputs["size"] / GB * inputs["price"] / MONTH
    best = best_count(inputs.latency, inputs["incidents"] / MONTH, work, each)
    possible = possible_count(inputs.latency, best, interval.period)
    given = inputs.get("keep")
    # two at least: with the newest alone nothing is there to go back to
    count = int(given) if given is not None else max(2, round(possible))
    if count > MOST:
        raise UsageError(
            f"{count:,} checkpoints would be kept, more than a million",
            next_step="give --keep, or check --price and --size",
        )
    kept = ages(inputs.latency, count, interval.period)
    found, uncovered = excess(inputs.latency, kept, interval.period)
    if uncovered > 0:  # those go back to the beginning, which nobody knows: counted without excess
        found = 0.0 if uncovered > 1 - 1e-9 else found
    least = mean_excess(inputs.latency, kept.size)
    return Keeping(best, possible, kept, found, least, uncovered)


def _cache(inputs: Inputs, failures: Failures, interval: Interval, dollars: float) -> Cache | None:
    speed = inputs.get("cache_load")
    if speed is None:
        return None
    load = inputs["size"] / speed
    size = inputs.get("cache_size")
    fits = None if size is None else int(size // inputs["size"])
    # what the work is worth that the same time then holds besides
    faster = failures.until_running - failures.load + load
    useful = useful_share(interval.work, interval.stall, failures.mtbf, faster, failures.pending)
    worth = 0.0 if fits == 0 else (useful - failures.useful) * dollars * MONTH
    return Cache(load, failures.load - load, worth, fits)


def _notes(plan: Plan) -> list[str]:
    found = []
    mtbf, interval, inputs = plan.failures.mtbf, plan.interval, plan.inputs
    if interval.limited and not interval.fixed:
        needed = inputs["size"] / interval.best_period
        found.append(
            f"the optimum, every {time_text(interval.best_period)}, is shorter than the write: "
            f"it needs {bytes_text(needed, '/s')} of --write"
        )
    if not in_domain(interval.stall, mtbf):
        found.append(
            "a checkpoint stalls for more than half of the time between two failures: the formulas "
            "hold no longer, save less or faster"
        )
    if plan.failures.useful < 0.5:
        found.append(
            f"only {share_text(plan.failures.useful)} of the time becomes work that stays: the "
            f"system fails every {time_text(mtbf)} and needs "
            f"{time_text(plan.failures.until_running)} to run again"
        )
    if plan.keeping.uncovered > 1e-3:
        found.append(
            f"{share_text(plan.keeping.uncovered)} of the corruptions are older than all that is "
            "kept: their work since the beginning is lost, and not counted here"
        )
    if plan.cache is not None and plan.cache.fits == 0:
        found.append("no checkpoint fits into the cache: it saves nothing")
    elif plan.cache is not None and plan.cache.saved <= 0:
        found.append("the cache is no faster than --load")
    return found
