"""Exact: the checkpoint's bytes against the digests that the run recorded, and those digests
against each other from step to step."""

from __future__ import annotations

from dataclasses import replace

from sdc_guard.archive.compare import NO_WHOLE, check_bytes
from sdc_guard.archive.manifest import FILE, SHARDED, Manifest, TensorEntry
from sdc_guard.archive.sealing.as_manifest import as_manifest
from sdc_guard.archive.sealing.files import compared_with
from sdc_guard.archive.sealing.seal_file import seal_at
from sdc_guard.archive.sharded.opened import OpenedFolder
from sdc_guard.detect.carried import in_words
from sdc_guard.errors import CheckpointUnreadable
from sdc_guard.store.trace_reader import TraceReader

from ..chain import all_breaks
from ..checkpoint import Checkpoint
from ..counter_breaks import counter_breaks
from ..readers.known import reader_of
from ..watched import Watch, percent
from .judgement import Judgement
from .race import race
from .sealed_state import not_left

_TRACED = """
    SELECT kind, name, h, s1, s2
    FROM digests JOIN layer_names USING (layer)
    WHERE phase = 'after' AND kind NOT IN ('buffer', 'step') AND step = $step
        AND attempt = $attempt AND rank = $rank
"""


class TraceOracle:
    """Judges by the run's own record.

    Under a digest budget "clean" means clean as far as recorded: the judgement says which share
    of the state's transitions was compared.

    Args:
        reader: of the run.
    """

    name = "trace"
    proves = True
    persists = True
    concurrent = False  # one reader of the trace, for one thread
    cost: float | None = None

    def __init__(self, reader: TraceReader) -> None:
        self._reader = reader
        found = all_breaks(reader)
        self._breaks = [item for item in found if item.within]
        self._counters = counter_breaks(reader)
        self._resumed_elsewhere = [item for item in found if not item.within]
        self._watch = Watch(reader)

    def judge(self, checkpoint: Checkpoint) -> Judgement:
        """Corrupt if the bytes differ from the record, or the record breaks at or before it."""
        try:
            manifest, stored = _recorded(checkpoint)
        except CheckpointUnreadable as error:
            said = "" if checkpoint.readable else "; ".join(checkpoint.reasons)
            return Judgement("untestable", said or error.what)
        share = self._watch.watched(manifest.trace_step).share
        for found in self._breaks:
            if found.step <= manifest.trace_step:
                between = f"between step {found.step - 1} and step {found.step}"
                reason = (
                    f"{in_words(found.kind)} {found.layer} changed {between}, outside the optimizer"
                )
                return Judgement("corrupt", reason, watched=share)
        counted = self._counted(manifest.trace_step)
        if stored and (counted is None or counted.verdict != "corrupt"):
            reason = f"stored bytes: {self._raced(checkpoint) or stored}"
            return Judgement("corrupt", reason, stored_bytes=True, watched=share)
        judgement = (
            counted or self._incomplete(manifest) or self._against_trace(checkpoint, manifest)
        )
        return replace(judgement, watched=share)

    def _counted(self, step: int) -> Judgement | None:
        """By the step counters that changed within a step."""
        for found in self._counters:
            if found.step <= step:
                return Judgement("corrupt", found.text)
            if found.last_clean < step:
                return Judgement("untestable", found.text)
        return None

    def _incomplete(self, manifest: Manifest) -> Judgement | None:
        """Untestable where the record up to the checkpoint has a gap."""
        lost, holes = self._watch.lost(manifest.trace_step), self._watch.holes(manifest.trace_step)
        if holes:
            what = f"{len(holes)} steps" if lost == holes else f"digests of {len(holes)} steps"
            return Judgement("untestable", f"the trace lacks {what}, the first is {holes[0]}")
        for found in self._resumed_elsewhere:
            if found.step <= manifest.trace_step:
                text = f"the attempt that begins at step {found.step} did not go on from the state"
                return Judgement("untestable", f"{text} that step {found.step - 1} left")
        return None

    def _against_trace(self, checkpoint: Checkpoint, manifest: Manifest) -> Judgement:
        step = manifest.trace_step
        compared, absent, recorded = set(), 0, 0
        if (path := self._not_left(checkpoint, manifest)) != "":
            return self._not_of(checkpoint, path, step)
        for rank, held in enumerate(_by_rank(checkpoint, manifest)):
            traced = self._traced(step, checkpoint.attempt, rank)
            recorded += len(traced)
            for path, entry in held:
                key = (entry.kind or "", entry.layer or "")
                if key not in traced:
                    absent += entry.kind is not None
                    continue
                compared.add((rank, key))
                if traced[key] != {tuple(entry.digest)}:
                    return self._not_of(checkpoint, path, step)
        if not recorded:
            return Judgement("untestable", f"no digests of step {step} recorded")
        if not compared:
            return Judgement("untestable", "none of its tensors is in the trace")
        if absent:
            text = f"the trace lacks the digests of {absent} of its tensors after step {step}"
            return Judgement("untestable", text)
        text = f"{len(compared)} of {recorded} recorded tensors equal the trace, bit for bit"
        return Judgement("clean", text + self._reservation(step) + _unproven(manifest))

    def _not_left(self, checkpoint: Checkpoint, manifest: Manifest) -> str:
        """Of what others saved, a tensor that the step did not leave; "" if there is none.

        Its seal names those alone that are as the step left them.
        """
        seal = None if manifest.file else seal_at(checkpoint.path)
        return "" if seal is None else not_left(seal, manifest, self._reader)

    def _not_of(self, checkpoint: Checkpoint, path: str, step: int) -> Judgement:
        """That a tensor is not what a step left; what it is, if that is known."""
        reason = self._raced(checkpoint) or f"{path}: not the bits of step {step}"
        return Judgement("corrupt", reason, stored_bytes=True)

    def _raced(self, checkpoint: Checkpoint) -> str:
        """Of which step beside its own the tensors are; "" if of none."""
        try:
            content = reader_of(checkpoint.format).open(checkpoint)
            return next(race(checkpoint, content, self._reader), "")
        except CheckpointUnreadable:
            return ""

    def _traced(
        self, step: int, attempt: int, rank: int
    ) -> dict[tuple[str, str], set[tuple[int, ...]]]:
        rows = self._reader.rows(_TRACED, {"step": step, "attempt": attempt, "rank": rank})
        found: dict[tuple[str, str], set[tuple[int, ...]]] = {}
        for kind, name, *sums in rows:
            found.setdefault((kind, name), set()).add(tuple(value % 2**64 for value in sums))
        return found

    def _reservation(self, step: int) -> str:
        share = self._watch.watched(step).share
        if share == 1:
            return ""
        return f"; before it {percent(share)} of the state's transitions were compared"


def _recorded(checkpoint: Checkpoint) -> tuple[Manifest, str]:
    """What was recorded of a checkpoint when it was written, and what of its bytes is not so.

    Raises:
        CheckpointUnreadable: there is no such record, or it cannot be compared.
    """
    seal = None if (checkpoint.path / FILE).is_file() else seal_at(checkpoint.path)
    if seal is not None and (sealed := as_manifest(seal)) is not None:
        changed = compared_with(seal, checkpoint.path).changed
        return sealed, next((f"{name}: {why}" for name, why in changed.items()), "")
    manifest = Manifest.read(checkpoint.path)
    stored = check_bytes(checkpoint.path, manifest, sealed=True)
    return manifest, "" if stored.sound else stored.reasons()[0]


def _by_rank(checkpoint: Checkpoint, manifest: Manifest) -> list[list[tuple[str, TensorEntry]]]:
    """(tensor, digest) of what each rank wrote, as its own trace has it."""
    if manifest.format != SHARDED:
        return [list(manifest.tensors.items())]
    written = OpenedFolder(checkpoint.path, manifest).by_rank
    return [
        [(one.piece.name, one.piece.entry) for one in part if one.piece.entry is not None]
        for part in written
    ]


def _unproven(manifest: Manifest) -> str:
    """What an older manifest leaves open."""
    return "" if manifest.xxh3 else f"; {NO_WHOLE}"
