"""The upper tail of each statistic in healthy runs: what thresholds begin from.

Of a single stream's |score|. A run's own tail takes their place within its first few hundred
steps, see `peaks`.

Fitted with benchmarks/calibrate_norms.py to seven runs of the sample GPT, seeds 100 to 106 with
600 steps each (206,752 scores of a layer). What came out is rounded up; and a tail that was
lighter than ξ = 0.1 is taken for one of that shape, as one model's light tail is no promise for
others. Scores of zeros take so few values that no tail can be fitted: the scale is such that the
largest of all, 2.3, is exceeded about as often as it was.
"""

from __future__ import annotations

from typing import Final

from .layer_watch import Kind
from .peaks import Tail

NORM: Final = Kind("norm", 0.05, Tail(level=3.5, share=1e-3, scale=0.62, shape=0.19))
PEAK: Final = Kind("peak", 0.05, Tail(level=3.0, share=1e-3, scale=0.35, shape=0.1))
ZEROS: Final = Kind("zeros", 0.25, Tail(level=1.0, share=1e-3, scale=0.4, shape=0.1), ranged=True)
TOTAL: Final = Kind("total", 0.05, Tail(level=2.0, share=0.05, scale=1.0, shape=0.1))
LOSS: Final = Kind("loss", 0.05, Tail(level=1.3, share=0.05, scale=0.28, shape=0.1), upwards=True)
SHIFT: Final = Tail(level=33.0, share=1e-3, scale=6.0, shape=0.1)
