"""What a guard's seal says, in the form of the manifests of its own archive."""

from __future__ import annotations

from typing import Final

import xxhash

from ..manifest import Manifest, TensorEntry
from .seal_file import Seal

_TRACED_NOWHERE: Final = ("step", "buffer")  # the trace has digests of these only where they change


def as_manifest(seal: Seal, created: float = 0.0) -> Manifest | None:
    """The manifest that a checkpoint would have in the archive; None of a seal without a guard.

    `file` is no file of it, and `xxh3` is of the checksums of all of its files.

    Args:
        seal: of the checkpoint.
        created: seconds since the epoch.
    """
    known = seal.guarded
    if known is None:
        return None
    tensors = {}
    for name, one in seal.digests.items():
        kind, layer = known.tensors.get(name, (None, None))
        in_trace = (None, None) if kind in _TRACED_NOWHERE else (kind, layer)
        tensors[name] = TensorEntry.of(one.digest, *in_trace)
    whole = xxhash.xxh3_128("".join(value for _, value in seal.files.values()).encode()).hexdigest()
    return Manifest(
        seal.step, known.trace_step, known.attempt, known.status, known.reasons,
        "", seal.bytes, tensors, created, whole,
    )  # fmt: skip
