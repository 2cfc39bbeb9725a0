"""What a guard's seal says is in a checkpoint against what the trace says that its step left."""

from __future__ import annotations

from typing import Final

from sdc_guard.archive.manifest import Manifest
from sdc_guard.archive.sealing.judged import Left, compared
from sdc_guard.archive.sealing.seal_file import Seal
from sdc_guard.digest import Digest
from sdc_guard.store.trace_reader import TraceReader

_LEFT: Final = """
    SELECT kind, name, h, s1, s2 FROM digests JOIN layer_names USING (layer)
    WHERE phase = 'after' AND kind NOT IN ('buffer', 'step') AND step = $step
        AND attempt = $attempt
"""


def not_left(seal: Seal, manifest: Manifest, trace: TraceReader) -> str:
    """The first tensor that should be one of the trace after the step and is not; "" if none.

    Tensors that ranks have other digests of are shards, or replicas that differ: neither is that
    of a whole tensor, and they are passed over.

    Args:
        seal: whose files are as they were sealed.
        manifest: made of it.
        trace: of the run.
    """
    layers = {layer.name: layer for layer in trace.run_file.layers}
    asked = {"step": manifest.trace_step, "attempt": manifest.attempt}
    found: dict[tuple[str, str], set[Digest]] = {}
    for kind, name, *sums in trace.rows(_LEFT, asked):
        digest = Digest(*(value % 2**64 for value in sums))
        found.setdefault((kind, name), set()).add(digest)
    left = {}
    for (kind, name), digests in found.items():
        if len(digests) == 1 and name in layers:
            dtype = layers[name].dtype.removeprefix("torch.") if kind == "param" else ""
            left[kind, name] = Left(next(iter(digests)), tuple(layers[name].shape), dtype)
    return next(iter(compared(seal.digests, left).differing), "")
