"""From what was asked for to the search that does it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from .asked import Asked, Noise
from .binary import Binary
from .foremost import Foremost
from .mirrored import Mirrored, other
from .planner import Planner
from .repeated import Repeated
from .scan import Scan
from .staged import Staged
from .verdicts import Verdict


def planner_for(
    asked: Asked,
    count: int,
    skipped: Collection[int] = (),
    trusted: Mapping[int, Verdict] | None = None,
    staged: bool = False,
    told: Sequence[tuple[int, Verdict]] = (),
    first: Sequence[int] = (),
) -> Planner:
    """The search.

    Args:
        asked: its options.
        count: number of checkpoints.
        skipped: places that are not to be judged.
        trusted: verdicts of places that are taken without judging.
        staged: whether a second, exact oracle confirms.
        told: places that were judged before, in that order. The search goes on as it would have
            without a break; only one that repeats asks for each again, and must be told then.
        first: places to begin with.
    """
    known = dict(trusted or {})
    if asked.first_good:
        known = {place: other(verdict) for place, verdict in known.items()}
    planner: Planner
    if asked.noise is not None:
        planner = _noisy(asked.noise, asked, count, skipped)
    elif asked.scan:
        planner = Scan(count, skipped)
    elif asked.repeat > 1:
        planner = Repeated(count, asked.repeat, asked.confidence, skipped)
    elif staged:
        planner = Staged(count, skipped)
    else:
        planner = Binary(count, skipped, known)
    planner = Mirrored(planner) if asked.first_good else planner
    if asked.repeat == 1:
        for place, verdict in told:
            planner.tell(place, verdict)
    if left := [place for place in first if place not in {*skipped, *known}]:
        planner = Foremost(planner, left, [place for place, _ in told])
    return planner


def _noisy(noise: Noise, asked: Asked, count: int, skipped: Collection[int]) -> Planner:
    from .noisy import Noisy  # numpy is slow to start, and the other searches do without it
    from .posterior import Rate

    rates = noise.false_positive, noise.false_negative
    priors = Rate.false_positive, Rate.false_negative
    if asked.first_good:  # in the mirror a clean one that is called corrupt is a false negative
        rates, priors = rates[::-1], priors[::-1]
    fp, fn = (prior(rate) for prior, rate in zip(priors, rates, strict=True))
    return Noisy(count, fp, fn, asked.confidence, noise.repeatable, skipped)
