"""The upper tail of each statistic in healthy runs: what thresholds begin from.

Of a single stream's |score|. A run's own tail takes their place within its first few hundred
steps, see `peaks`.

From benchmarks/calibrate_norms.py on two families of healthy runs: the sample GPT, seeds 100 to
106 (600 steps each, 206,752 scores of a layer), and ten kinds of small trainings, seeds 300 to 302
(600 steps each, about 95,000 scores of a layer). Rounded up, and a tail that was lighter than ξ =
0.1 is taken for one of that shape: a light tail is no promise for other models. Norm and peak lie
between the GPT's tail and that of the small ones together, which experts that see few examples
rule (level 7.4, scale 2.6, shape 0.28 for the norm). Scores of zeros take so few values that no
tail can be fitted: the scale is such that the largest of the GPT, 2.3, is exceeded seldom; most of
what small trainings have above it lies in the range that a layer has shown, see `seen_range`.
"""

from __future__ import annotations

from typing import Final

from .layer_watch import Kind
from .peaks import Tail

NORM: Final = Kind("norm", 0.05, Tail(level=4.0, share=1e-3, scale=0.75, shape=0.19))
PEAK: Final = Kind("peak", 0.05, Tail(level=3.5, share=1e-3, scale=0.6, shape=0.15), ranged=0.0)
ZEROS: Final = Kind("zeros", 0.25, Tail(level=1.5, share=1e-3, scale=0.4, shape=0.1), ranged=0.5)
TOTAL: Final = Kind("total", 0.05, Tail(level=2.2, share=0.05, scale=1.0, shape=0.1))
LOSS: Final = Kind("loss", 0.05, Tail(level=1.3, share=0.05, scale=0.4, shape=0.1), upwards=True)
SHIFT: Final = Tail(level=40.0, share=1e-3, scale=8.0, shape=0.1)
