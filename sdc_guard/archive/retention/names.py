"""Names of the policies, for a command line that does not load NumPy for its help."""

from __future__ import annotations

from typing import Final

DEFAULT: Final = "greedy-log"
NAMES: Final = (DEFAULT, "keep-last", "uniform", "daily-weekly-monthly", "tower-of-hanoi")
