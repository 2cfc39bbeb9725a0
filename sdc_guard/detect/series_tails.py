"""How far healthy losses and gradient norms are from their past: where limits begin.

Of the z on one side, 0 where it is on the other. A log's own tails take their place within its
first few hundred rows, see `peaks`. Calibrated with benchmarks/calibrate_series.py on logs made
from formulas and by small trainings, seeds 0 to 4.
"""

from __future__ import annotations

from typing import Final

from .peaks import Tail

NORM_ABOVE: Final = Tail(level=1.225, share=0.05, scale=0.436, shape=0.309)
NORM_BELOW: Final = Tail(level=1.277, share=0.05, scale=0.415, shape=0.205)
LOSS_ABOVE: Final = Tail(level=1.522, share=0.05, scale=0.500, shape=0.256)
LOSS_BELOW: Final = Tail(level=1.289, share=0.05, scale=0.460, shape=0.066)

# Be it ever so rare in its log, what is nearer to its past than this is not worth telling: in a
# steady series one value in a million is further than 5 σ. What is further, and next to an alarm,
# belongs to it: its beginning, or its end.
LOWEST: Final = 5.0
