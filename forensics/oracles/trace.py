"""Exact: the checkpoint's bytes against the digests that the run recorded, and those digests
against each other from step to step."""

from __future__ import annotations

from sdc_guard.archive.compare import check_bytes
from sdc_guard.archive.manifest import Manifest
from sdc_guard.errors import CheckpointUnreadable
from sdc_guard.store.reader import RunReader

from ..checkpoint import Checkpoint
from .judgement import Judgement

# What a step left behind and the next one did not find, unless the script told that it had
# written there itself. Within one attempt that is a change of state at rest; where an attempt
# goes on from another one's step, it is a resume from something else.
BREAKS = """
    SELECT now.step, now.kind, layer_names.name, now.attempt = past.attempt
    FROM digests AS now
    JOIN digests AS past ON past.step = now.step - 1 AND past.rank = now.rank
        AND past.kind = now.kind AND past.layer = now.layer
    JOIN layer_names ON layer_names.layer = now.layer
    WHERE now.phase = 'before' AND past.phase = 'after'
        AND (now.h, now.s1, now.s2) IS DISTINCT FROM (past.h, past.s1, past.s2)
        AND now.step NOT IN (SELECT step FROM events WHERE kind = 'refresh')
    ORDER BY now.step, now.kind, now.layer
"""

_PHASES = """
    SELECT step, count(DISTINCT phase) FROM digests WHERE rank = 0 GROUP BY step ORDER BY step
"""

_TRACED = """
    SELECT kind, name, h, s1, s2
    FROM digests JOIN layer_names USING (layer)
    WHERE phase = 'after' AND step = $step AND attempt = $attempt AND rank = 0
"""


def breaks(reader: RunReader) -> list[tuple[int, str, str]]:
    """(step, kind, layer) of state that changed between two steps of one attempt."""
    return [(step, kind, name) for step, kind, name, same in reader.rows(BREAKS) if same]


class TraceOracle:
    """Judges by the run's own record.

    Args:
        reader: of the run.
    """

    name = "trace"
    proves = True

    def __init__(self, reader: RunReader) -> None:
        self._reader = reader
        rows = reader.rows(BREAKS)
        self._breaks = [row[:3] for row in rows if row[3]]
        self._resumed_elsewhere = [row[0] for row in rows if not row[3]]
        self._phases: dict[int, int] = dict(reader.rows(_PHASES))
        self._first = min(self._phases, default=0)

    def judge(self, checkpoint: Checkpoint) -> Judgement:
        """Corrupt if the bytes differ from the record, or the record breaks at or before it."""
        if not checkpoint.readable:
            return Judgement("untestable", "; ".join(checkpoint.reasons))
        try:
            manifest = Manifest.read(checkpoint.path)
            stored = check_bytes(checkpoint.path, manifest)
        except CheckpointUnreadable as error:
            return Judgement("untestable", error.what)
        for step, kind, name in self._breaks:
            if step <= manifest.trace_step:
                reason = f"{kind} {name} changed between step {step - 1} and step {step}"
                return Judgement("corrupt", f"{reason}, outside the optimizer")
        if not stored.sound:
            reason = f"stored bytes: {stored.reasons()[0]}"
            return Judgement("corrupt", reason, stored_bytes=True)
        return self._incomplete(manifest) or self._against_trace(checkpoint, manifest)

    def _incomplete(self, manifest: Manifest) -> Judgement | None:
        """Untestable where the chain of digests up to the checkpoint has a gap."""
        steps = range(self._first, manifest.trace_step + 1)
        holes = [step for step in steps if self._phases.get(step) != 2]
        if holes:
            text = f"the trace lacks digests of {len(holes)} steps, the first is {holes[0]}"
            return Judgement("untestable", text)
        for step in self._resumed_elsewhere:
            if step <= manifest.trace_step:
                text = f"the attempt that begins at step {step} did not go on from the state that"
                return Judgement("untestable", f"{text} step {step - 1} left")
        return None

    def _against_trace(self, checkpoint: Checkpoint, manifest: Manifest) -> Judgement:
        rows = self._reader.rows(
            _TRACED, {"step": manifest.trace_step, "attempt": checkpoint.attempt}
        )
        if not rows:
            return Judgement("untestable", f"no digests of step {manifest.trace_step} recorded")
        traced = {(kind, name): tuple(v % 2**64 for v in sums) for kind, name, *sums in rows}
        compared = set()
        for path, entry in manifest.tensors.items():
            key = (entry.kind or "", entry.layer or "")
            if key not in traced:
                continue
            compared.add(key)
            if traced[key] != tuple(entry.digest):
                return Judgement("corrupt", f"{path}: not the bits of step {manifest.trace_step}")
        if not compared:
            return Judgement("untestable", "none of its tensors is in the trace")
        text = f"{len(compared)} of {len(traced)} recorded tensors equal the trace, bit for bit"
        return Judgement("clean", text)
