"""Exact: the checkpoint's bytes against the digests that the run recorded, and those digests
against each other from step to step."""

from __future__ import annotations

from sdc_guard.archive.compare import check_bytes
from sdc_guard.archive.manifest import Manifest
from sdc_guard.errors import CheckpointUnreadable
from sdc_guard.store.reader import RunReader

from ..checkpoint import Checkpoint
from .judgement import Judgement

# What a step left behind and the next one did not find, within one attempt, unless the script
# told that it had written there itself.
BREAKS = """
    SELECT now.step, now.kind, layer_names.name
    FROM digests AS now
    JOIN digests AS past ON past.step = now.step - 1 AND past.attempt = now.attempt
        AND past.rank = now.rank AND past.kind = now.kind AND past.layer = now.layer
    JOIN layer_names ON layer_names.layer = now.layer
    WHERE now.phase = 'before' AND past.phase = 'after'
        AND (now.h, now.s1, now.s2) IS DISTINCT FROM (past.h, past.s1, past.s2)
        AND now.step NOT IN (SELECT step FROM events WHERE kind = 'refresh')
    ORDER BY now.step, now.kind, now.layer
"""

_TRACED = """
    SELECT kind, name, h, s1, s2
    FROM digests JOIN layer_names USING (layer)
    WHERE phase = 'after' AND step = $step AND attempt = $attempt AND rank = 0
"""


class TraceOracle:
    """Judges by the run's own record.

    Args:
        reader: of the run.
    """

    name = "trace"
    proves = True

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        self._breaks = reader.rows(BREAKS)

    def judge(self, checkpoint: Checkpoint) -> Judgement:
        """Corrupt if the bytes differ from the record, or the record breaks at or before it."""
        if not checkpoint.readable:
            return Judgement("untestable", "; ".join(checkpoint.reasons))
        manifest = Manifest.read(checkpoint.path)
        try:
            stored = check_bytes(checkpoint.path, manifest)
        except CheckpointUnreadable as error:
            return Judgement("untestable", error.what)
        for step, kind, name in self._breaks:
            if step <= checkpoint.step:
                reason = f"{kind} {name} changed between step {step - 1} and step {step}"
                return Judgement("corrupt", f"{reason}, outside the optimizer")
        if not stored.sound:
            return Judgement("corrupt", f"storage: {stored.reasons()[0]}", storage=True)
        return self._against_trace(checkpoint, manifest)

    def _against_trace(self, checkpoint: Checkpoint, manifest: Manifest) -> Judgement:
        rows = self._reader.rows(_TRACED, {"step": checkpoint.step, "attempt": checkpoint.attempt})
        if not rows:
            return Judgement("untestable", f"the trace holds no digests of step {checkpoint.step}")
        traced = {(kind, name): tuple(v % 2**64 for v in sums) for kind, name, *sums in rows}
        compared = 0
        for path, entry in manifest.tensors.items():
            recorded = traced.get((entry.kind or "", entry.layer or ""))
            if recorded is None:
                continue
            compared += 1
            if recorded != tuple(entry.digest):
                return Judgement("corrupt", f"{path}: not the bits of step {checkpoint.step}")
        if not compared:
            return Judgement("untestable", "none of its tensors is in the trace")
        return Judgement("clean", f"{compared} tensors equal the trace, bit for bit")
