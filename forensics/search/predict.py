"""How many judgings a search will take, by going through it with made-up archives."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from .planner import Planner
from .verdicts import Verdict

EDGES: Final = 400  # of larger archives, evenly spread; with one of them every edge is tried


@dataclass(frozen=True)
class Prediction:
    """Over where the edge may be, each place alike, and none.

    Attributes:
        best, worst, expected: number of judgings.
        rounds: expected number of rounds, of up to `jobs` judgings at once.
    """

    best: int
    worst: int
    expected: float
    rounds: float


def predict(
    start: Callable[[], Planner],
    count: int,
    jobs: int = 1,
    rates: tuple[float, float] | None = None,
    repeatable: bool = True,
    edges: int = EDGES,
    mirrored: bool = False,
    seed: int = 0,
    between: tuple[int, int] | None = None,
) -> Prediction:
    """Go through searches of monotone archives of which all can be judged.

    Args:
        start: makes the planner of a search.
        count: number of checkpoints.
        jobs: judgings at once.
        rates: with which the oracle errs, false positive and false negative; never by default.
        repeatable: whether it repeats its errors.
        edges: how many places of the edge to try at most.
        mirrored: whether corrupt ones come first.
        seed: of the errors.
        between: the first and the last place where the edge may be; `count` is none.
    """
    rng = random.Random(seed)
    first, last = between or (0, count)
    number = min(edges, last - first + 1)
    tests, rounds = [], []
    for i in range(number):
        every = number == last - first + 1
        edge = first + (i if every else round(i * (last - first) / (number - 1)))
        judged, went = _go(start(), jobs, _oracle(edge, rates, repeatable, mirrored, rng))
        tests.append(judged)
        rounds.append(went)
    return Prediction(min(tests), max(tests), sum(tests) / number, sum(rounds) / number)


def _oracle(
    edge: int,
    rates: tuple[float, float] | None,
    repeatable: bool,
    mirrored: bool,
    rng: random.Random,
) -> Callable[[int], Verdict]:
    said: dict[int, Verdict] = {}

    def judge(place: int) -> Verdict:
        if repeatable and place in said:
            return said[place]
        corrupt = (place >= edge) != mirrored
        if rates is not None and rng.random() < rates[corrupt]:
            corrupt = not corrupt
        said[place] = "corrupt" if corrupt else "clean"
        return said[place]

    return judge


def _go(planner: Planner, jobs: int, judge: Callable[[int], Verdict]) -> tuple[int, int]:
    tests = rounds = 0
    while places := planner.ask(jobs):
        rounds += 1
        tests += len(places)
        for place in places:
            planner.tell(place, judge(place))
    return tests, rounds
