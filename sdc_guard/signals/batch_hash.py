"""One number for a step's batches, made of their tensors' digests."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def folded(digests: bytes) -> int:
    """One signed 64-bit number of a batch's digests, as bytes, in which their order counts."""
    content = hashlib.blake2b(digests, digest_size=8).digest()
    return int.from_bytes(content, "little", signed=True)


def folded_all(batches: Sequence[bytes]) -> int | None:
    """One number for the micro-batches of a step, in their order; None without any."""
    hashes = [folded(digests) for digests in batches]
    if len(hashes) > 1:
        return folded(b"".join(number.to_bytes(8, "little", signed=True) for number in hashes))
    return hashes[0] if hashes else None
