"""Which checkpoint to judge next, and what the verdicts say: pure, no files, no processes."""

from .binary import bisect
from .verdicts import Found, Verdict

__all__ = ["Found", "Verdict", "bisect"]
