"""The upper tail of each statistic in healthy runs: what thresholds begin from.

Of a single stream's |score|. A run's own tail takes their place within its first few hundred
steps, see `peaks`. Calibrated with benchmarks/calibrate_norms.py.
"""

from __future__ import annotations

from typing import Final

from .layer_watch import Kind
from .peaks import Tail

NORM: Final = Kind("norm", 0.05, Tail(level=4.0, share=0.01, scale=1.0, shape=0.2))
PEAK: Final = Kind("peak", 0.05, Tail(level=4.0, share=0.01, scale=1.0, shape=0.2))
ZEROS: Final = Kind("zeros", 0.5, Tail(level=4.0, share=0.01, scale=1.0, shape=0.2))
TOTAL: Final = Kind("total", 0.05, Tail(level=4.0, share=0.01, scale=1.0, shape=0.2))
LOSS: Final = Kind("loss", 0.05, Tail(level=4.0, share=0.01, scale=1.0, shape=0.2))
SHIFT: Final = Tail(level=20.0, share=0.01, scale=10.0, shape=0.1)
