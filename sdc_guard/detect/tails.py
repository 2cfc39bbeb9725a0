"""The upper tail of each statistic in healthy runs: what thresholds begin from.

Of a single stream's |score|. A run's own tail takes their place within its first few hundred
steps, see `peaks`. Calibrated with benchmarks/calibrate_norms.py.
"""

from __future__ import annotations

from typing import Final

from .peaks import Tail

NORM: Final = Tail(level=4.0, share=0.01, scale=1.0, shape=0.2)
PEAK: Final = Tail(level=4.0, share=0.01, scale=1.0, shape=0.2)
ZEROS: Final = Tail(level=4.0, share=0.01, scale=1.0, shape=0.2)
SHIFT: Final = Tail(level=20.0, share=0.01, scale=10.0, shape=0.2)
TOTAL: Final = Tail(level=4.0, share=0.01, scale=1.0, shape=0.2)

NORM_FLOOR: Final = 0.05
PEAK_FLOOR: Final = 0.05
ZEROS_FLOOR: Final = 0.5
