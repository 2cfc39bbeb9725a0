"""Fingerprints of a tensor's bits."""

from .reference import Digest, Span, digest_rows, digest_tensor, mix64
from .solve import SingleChange, confirm_change, find_change, solve_single

__all__ = [
    "Digest",
    "SingleChange",
    "Span",
    "confirm_change",
    "digest_rows",
    "digest_tensor",
    "find_change",
    "mix64",
    "solve_single",
]
