"""Fingerprints of a tensor's bits."""

from .reference import Digest, mix64
from .rows import digest_rows, digest_tensor
from .solve import SingleChange, confirm_change, find_change, solve_single
from .span import Patch, Patches, Place, Span

__all__ = [
    "Digest",
    "Patch",
    "Patches",
    "Place",
    "SingleChange",
    "Span",
    "confirm_change",
    "digest_rows",
    "digest_tensor",
    "find_change",
    "mix64",
    "solve_single",
]
