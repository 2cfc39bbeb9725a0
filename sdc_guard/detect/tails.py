"""The upper tail of each statistic in healthy runs: what thresholds begin from.

Of a single stream's |score|. A run's own tail takes their place within its first few hundred
steps, see `peaks`. Calibrated with benchmarks/calibrate_norms.py.
"""

from __future__ import annotations

from typing import Final

from .layer_watch import Kind
from .peaks import Tail

NORM: Final = Kind("norm", 0.05, Tail(level=3.5, share=1e-3, scale=0.4, shape=0.2))
PEAK: Final = Kind("peak", 0.05, Tail(level=3.2, share=1e-3, scale=0.5, shape=0.1))
ZEROS: Final = Kind("zeros", 0.25, Tail(level=1.0, share=1e-3, scale=0.5, shape=0.1), ranged=True)
TOTAL: Final = Kind("total", 0.05, Tail(level=2.0, share=0.05, scale=0.8, shape=0.15))
LOSS: Final = Kind("loss", 0.05, Tail(level=1.3, share=0.05, scale=0.25, shape=0.2))
SHIFT: Final = Tail(level=30.0, share=1e-3, scale=6.0, shape=0.0)
