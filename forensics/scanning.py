"""Judging every checkpoint of an archive by all that can be told without a guard's trace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final

from sdc_guard.errors import SdcGuardError

from .checkpoint import Checkpoint, Status
from .executors.local import Local
from .locations import still_there
from .oracles.consistency import ConsistencyOracle
from .oracles.integrity import Bytes, read_bytes
from .oracles.judgement import Judgement, Oracle
from .oracles.neighbours import Neighbours
from .oracles.statistics import StatisticsOracle
from .unforeseen import unforeseen

_MOST_REASONS: Final = 5  # lines on what else could not be checked


@dataclass(frozen=True)
class Scanned:
    """What was found of one checkpoint.

    Attributes:
        checkpoint: as the index has it.
        status: corrupt where an exact comparison says so; suspect where a contradiction or a
            statistic does, or the guard did when it was saved; clean where each tensor fits a
            checksum; else untested.
        reasons: for the status, or of what could not be checked.
        damaged: tensor, file or record to what is wrong with it.
        intact: tensors that fit a checksum.
        unchecked: tensors that have none, and files that say what they are.
        bytes: that were read.
        foreign: what is neither tensor nor number, and not evaluated, with its type's name.
        why: why some of `unchecked` are, where it is not just that there is no checksum.
    """

    checkpoint: Checkpoint
    status: Status
    reasons: tuple[str, ...]
    readable: bool = True
    damaged: dict[str, str] = field(default_factory=dict)
    intact: tuple[str, ...] = ()
    unchecked: tuple[str, ...] = ()
    bytes: int = 0
    foreign: dict[str, str] = field(default_factory=dict)
    why: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The checkpoint in JSON output."""
        one = replace(
            self.checkpoint, status=self.status, reasons=self.reasons, readable=self.readable
        )
        return {
            **one.as_dict(),
            "damaged": self.damaged,
            "intact": list(self.intact),
            "unchecked": list(self.unchecked),
            "unchecked_why": self.why,
            "bytes": self.bytes,
            "not_evaluated": self.foreign,
        }


def scanned(
    found: Sequence[Checkpoint],
    jobs: int = 1,
    *,
    statistics: bool | None = None,
    tell: Callable[[Scanned], None] = lambda _: None,
) -> list[Scanned]:
    """Judge each checkpoint.

    Args:
        found: by step.
        jobs: read so many at once.
        statistics: look at the values of all of them, or of none; None for those that no checksum
            proves.
        tell: called with each as soon as it is judged, in any order where there are several jobs.
    """
    near = Neighbours(found)
    judges: list[Oracle] = [ConsistencyOracle(found, near=near)]
    values = StatisticsOracle(found, near=near)

    def judge(place: int) -> Scanned:
        try:
            return looked_at(found[place])
        except (SdcGuardError, OSError):  # an archive that is gone
            raise
        except Exception as error:  # noqa: BLE001 - because one file nobody foresaw must not end the scan
            reason = unforeseen(error, "judging")
            return Scanned(found[place], "untested", (reason,), readable=False)

    def looked_at(one: Checkpoint) -> Scanned:
        read = read_bytes(one)
        suspecting = list(judges)
        if statistics or (statistics is None and read.judgement.verdict == "untestable"):
            suspecting.append(values)
        answer = _joined(one, read, [oracle.judge(one) for oracle in _if_read(read, suspecting)])
        content = near.content(one)
        still_there(one.path)
        return (
            answer if isinstance(content, str) else replace(answer, foreign=dict(content.foreign))
        )

    answers: dict[int, Scanned] = {}
    for place, answer in Local(jobs).run(judge, range(len(found))):
        answers[place] = answer
        tell(answer)
    return [answers[place] for place in range(len(found))]


def _if_read(read: Bytes, judges: Sequence[Oracle]) -> Iterator[Oracle]:
    """Who is asked further: nobody of damaged bytes, or of none."""
    if read.integrity is not None and read.judgement.verdict != "corrupt":
        yield from judges


def _joined(one: Checkpoint, read: Bytes, further: Sequence[Judgement]) -> Scanned:
    found = read.integrity
    if found is None:
        told = any(read.reason in why for why in one.reasons) or read.reason == _all(one)
        reasons = tuple(dict.fromkeys((*one.reasons, *(() if told else (read.reason,)))))
        return Scanned(one, "untested", reasons, readable=False)
    suspicions = [judgement.reason for judgement in further if judgement.verdict == "corrupt"]
    if read.judgement.verdict == "corrupt":
        status: Status = "corrupt"
        said = [why for why in one.reasons if why.removeprefix("unreadable: ") not in read.reason]
        reasons = (read.reason, *said)
    elif suspicions or one.status == "suspect":
        status = "suspect"
        reasons = (*one.reasons, *suspicions)
    elif read.judgement.verdict == "clean" and not found.unchecked:
        status, reasons = "clean", one.reasons
    else:
        status, reasons = "untested", (*one.reasons, read.reason)
    return Scanned(
        one, status, tuple(dict.fromkeys(reasons)), True,
        dict(found.damaged), found.intact, found.unchecked, found.bytes,
        why=dict(found.why),
    )  # fmt: skip


def _all(one: Checkpoint) -> str:
    """The reasons that the index has, in a line: what reading one that it cannot read repeats."""
    return "; ".join(one.reasons)


def not_checkable(found: Sequence[Scanned]) -> list[str]:
    """A line for each format of which something has no checksum, and for each reason besides."""
    lines = []
    by_format = sorted(found, key=lambda one: one.checkpoint.format)
    for format, group in groupby(by_format, key=lambda one: one.checkpoint.format):
        readable = [one for one in group if one.readable]
        plain = [(one, len(set(one.unchecked) - one.why.keys())) for one in readable]
        counts = [(one, count) for one, count in plain if count]
        if counts:
            which = _so_many(len(counts))
            if any(one.intact for one, _ in counts):
                most = max(count for _, count in counts)
                what = f"up to {most:,} tensors have no checksum: only their structure was checked"
            else:
                what = f"no checksum in {format}: only its structure was checked"
            lines.append(f"{which}: {what}")
        reasons = Counter(
            f"{name}: {why}" for one in readable for name, why in one.why.items()
        ).most_common()
        lines += [f"{_so_many(count)}: {text}" for text, count in reasons[:_MOST_REASONS]]
        if len(reasons) > _MOST_REASONS:
            lines.append(f"{len(reasons) - _MOST_REASONS:,} more could not be checked")
    return lines


def _so_many(count: int) -> str:
    return "1 checkpoint" if count == 1 else f"{count:,} checkpoints"
