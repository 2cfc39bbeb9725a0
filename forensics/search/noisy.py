"""Bayesian search with an oracle that errs, with rates that are known or not."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .posterior import Floats, Posterior, Rate, gains, split
from .verdicts import Found, Probe, Verdict

# A repeatable oracle is over when no place left would bring as much as this: what an answer far
# from the edge says of it. In bits per judging.
LEAST_GAIN: Final = 0.02
_MOST_LIKELY: Final = 3  # places told
_MOST_ROWS: Final = 256  # of what a round may answer: 8 places are chosen jointly, more about so


class Noisy:
    """Asks where the answer is expected to say the most for its cost.

    With a repeatable oracle no place is asked twice: it would repeat its error. Then an error
    beside the edge cannot be told from the truth, and the answer is often a range: the shortest
    that holds the first corrupt one with `confidence`.

    Args:
        count: number of checkpoints.
        fp, fn: the oracle's rates of calling clean corrupt, and corrupt clean.
        confidence: the search ends when one place is the first corrupt one with this probability,
            or none is.
        repeatable: whether the oracle answers the same of the same checkpoint.
        skipped: places that are not to be judged.
        costs: [count] of a judging, in any unit; all the same by default.
    """

    stage = 0

    def __init__(
        self,
        count: int,
        fp: Rate | None = None,
        fn: Rate | None = None,
        confidence: float = 0.95,
        repeatable: bool = True,
        skipped: Collection[int] = (),
        costs: Sequence[float] | None = None,
    ) -> None:
        self._fp, self._fn = fp or Rate.false_positive(), fn or Rate.false_negative()
        self._confidence, self._repeatable = confidence, repeatable
        self._skipped = tuple(sorted(skipped))
        self._untestable: set[int] = set()
        self._probes: list[Probe] = []
        self._corrupt, self._clean = np.zeros(count), np.zeros(count)
        self._costs = np.ones(count) if costs is None else np.asarray(costs, dtype=np.float64)

    def ask(self, count: int = 1) -> tuple[int, ...]:
        """Up to `count` places whose answers together are expected to say the most."""
        candidates = self._candidates()
        posterior = self.posterior()
        if not candidates.any() or _shortest(self._mass(posterior), self._confidence)[1] == 1:
            return ()
        rows, chosen = posterior.weights[np.newaxis, :], []
        for _ in range(count):
            gain = np.where(candidates, gains(rows, posterior) / self._costs, -np.inf)
            place = int(gain.argmax())
            too_little = self._repeatable and gain[place] * self._costs[place] < LEAST_GAIN
            if not candidates[place] or too_little:
                break
            chosen.append(place)
            candidates[place] = not self._repeatable
            rows = split(rows, posterior, place)
            rows = rows[np.argsort(-rows.sum(axis=1))[:_MOST_ROWS]]
            rows = rows / rows.sum()
        return tuple(chosen)

    def tell(self, place: int, verdict: Verdict) -> None:
        """Take the verdict."""
        self._probes.append((place, verdict))
        if verdict == "untestable":
            self._untestable.add(place)
        else:
            (self._corrupt if verdict == "corrupt" else self._clean)[place] += 1

    def posterior(self) -> Posterior:
        """What all answers say."""
        return Posterior.of(self._corrupt, self._clean, self._fp, self._fn)

    def found(self) -> Found:
        """The shortest range that holds the first corrupt one with the confidence asked for.

        Nothing corrupt where "none" is in that range, too.
        """
        testable = self._testable()
        mass = self._mass(self.posterior())
        start, length = _shortest(mass, self._confidence)
        none = start + length == mass.size
        before = start - 1 if not none else testable.size - 1
        return Found(
            last_clean=int(testable[before]) if before >= 0 else None,
            first_corrupt=None if none else int(testable[start + length - 1]),
            untestable=tuple(sorted(self._untestable)),
            probes=tuple(self._probes),
            skipped=self._skipped,
            confidence=float(mass[start : start + length].sum()),
            likely=self._likely(mass, testable),
            undecided=none and length > 1,
        )

    def remaining(self, jobs: int = 1) -> int:
        """About how many rounds the uncertainty is worth, at what the next answer brings."""
        candidates, posterior = self._candidates(), self.posterior()
        if not self.ask():
            return 0
        gain = gains(posterior.weights[np.newaxis, :], posterior)[candidates].max()
        weights = posterior.weights[posterior.weights > 0]
        entropy = -(weights * np.log2(weights)).sum()
        return max(1, int(np.ceil(entropy / max(gain, LEAST_GAIN) / jobs)))

    def _testable(self) -> NDArray[np.intp]:
        barred = self._untestable.union(self._skipped)
        return np.array([p for p in range(self._corrupt.size) if p not in barred], dtype=np.intp)

    def _candidates(self) -> NDArray[np.bool_]:
        """[count] which places may be asked."""
        allowed = np.zeros(self._corrupt.size, dtype=np.bool_)
        allowed[self._testable()] = True
        if self._repeatable:
            allowed &= self._corrupt + self._clean == 0
        return allowed

    def _likely(
        self, mass: Floats, testable: NDArray[np.intp]
    ) -> tuple[tuple[int | None, float], ...]:
        order = np.argsort(-mass, kind="stable")[:_MOST_LIKELY]
        return tuple(
            (None if i == testable.size else int(testable[i]), float(mass[i])) for i in order
        )

    def _mass(self, posterior: Posterior) -> Floats:
        """[testable + 1] of the first corrupt testable place; the last: none is.

        Where the edge lies among untestable places no answer tells.
        """
        starts = np.concatenate([[0], self._testable() + 1])
        return np.add.reduceat(posterior.weights, starts.astype(np.intp))


def _shortest(mass: Floats, confidence: float) -> tuple[int, int]:
    """Start and length of the shortest run of places with so much mass, and the heaviest such."""
    sums = np.concatenate([[0.0], np.cumsum(mass)])
    for length in range(1, mass.size):
        held = sums[length:] - sums[:-length]
        if held.max() >= confidence:
            return int(held.argmax()), length
    return 0, mass.size
