"""Numbers on the command line: finite, and none that no search can mean."""

from __future__ import annotations

import math
from typing import Any, Final

import click

LARGEST_STEP: Final = 2**63 - 1  # steps are stored in 64 bits
MOST_JOBS: Final = 100_000
MOST_RUNS: Final = 1_000_000  # of one command on one checkpoint
LONGEST: Final = 1e9  # seconds: 31 years


class Number(click.FloatRange):
    """A float within its bounds. NaN is within none: no comparison with it is true."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """As click does, without what is not finite."""
        found = float(super().convert(value, param, ctx))
        if not math.isfinite(found):
            self.fail(f"{value} is not a finite number", param, ctx)
        return found


STEP: Final = click.IntRange(0, LARGEST_STEP)
JOBS: Final = click.IntRange(1, MOST_JOBS)
RUNS: Final = click.IntRange(1, MOST_RUNS)
