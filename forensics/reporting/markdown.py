"""A report as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from sdc_guard.shown import shown

from ..watched import percent
from .facts import WHERE_ONLY, Report, Told
from .result_lines import lines, table, utc

# what would be a tag, a link, an image, code or emphasis; a file's names may say anything
_MARKS: Final = re.compile(r"([\\<>`*\[]|&(?=#|\w+;))")


def plain(text: str) -> str:
    """Text that Markdown shows as it is, in a line."""
    return _MARKS.sub(r"\\\1", shown(text))


def markdown(report: Report) -> str:
    """The report; sections without content are left out."""
    kind = "Run" if report.source == "run" else "Archive"
    parts = [
        f"# {kind} {plain(report.name)}",
        f"**{plain(report.headline.sentence)}**",
        *_answer(report),
        *_recorded(report),
        *_left_out(report),
        *(part for one in report.told_sessions() for part in _session(one)),
        *_alerts(report),
        *_checkpoints(report),
        *_attempts(report),
        *_unseen(report),
        f"Made {utc(report.made)} of {plain(report.place)}; "
        + ", ".join(f"{name} {version}" for name, version in report.versions.items())
        + ".",
    ]
    return "\n\n".join(parts) + "\n"


def _answer(report: Report) -> Iterator[str]:
    answer, back = report.headline, report.go_back
    if answer.machine is not None:
        yield f"Rank {answer.rank} ran on {plain(answer.machine.text)}. {WHERE_ONLY}"
    if answer.rests_on:
        yield "It rests on:\n\n" + _items(answer.rests_on)
    if answer.limits:
        yield "It does not claim more:\n\n" + _items(answer.limits)
    for one in answer.elements:
        rows = [(bit.position, bit.part, bit.before, bit.after) for bit in one.flipped]
        name = f"{plain(one.kind)} {plain(one.name)}, element {one.index}"
        what = f"{name} ({one.dtype or 'dtype not known'}): {one.before} became {one.after}"
        yield f"{what}.\n\n" + table(("bit", "part", "before", "after"), rows)
    yield "## Go back to" if back.needed else "## Restore from"
    if back.step is None:
        yield plain(back.why)
    else:
        yield f"Checkpoint of step {back.step}, {plain(back.path or '')}. {plain(back.why)}"
    if back.command is not None:
        yield (
            "The training script recorded this command; read it before you run it. It stops at "
            "the last recorded step."
        )
        yield "    " + shown(back.command)
    for command, why in back.then:
        yield f"{plain(why)}:\n\n    {shown(command)}"


def _items(texts: tuple[str, ...]) -> str:
    return "\n".join(f"- {plain(text)}" for text in texts)


def _recorded(report: Report) -> Iterator[str]:
    known = report.recorded
    if known is None:
        return
    text = (
        f"{known.steps} steps recorded ({known.first} to {known.last}), {known.layers} layers, "
        f"{known.attempts} attempt{'' if known.attempts == 1 else 's'}."
    )
    if known.skipped:
        text += f" {known.skipped} of them skipped: no update was applied."
    if known.last is not None and known.share < 1:
        share = percent(known.share)
        text += f" {share} of the state's transitions from step to step were compared."
    yield "## Recorded"
    yield text


def _left_out(report: Report) -> Iterator[str]:
    if left := len(report.sessions) - len(report.told_sessions()):
        yield f"{left} older sessions are left out."


def _session(told: Told) -> Iterator[str]:
    name = "a session" if told.command == "session" else f"`sdc-bisect {plain(told.command)}`"
    when = "" if told.finished is None else f" of {utc(told.finished)}"
    yield f"## Result of {name}{when}" if told.result else f"## Session {plain(told.name)}, {name}"
    if told.result is not None:
        yield "\n".join(lines(dict(told.result), plain))
    else:
        yield "It is open." if told.is_open else "It has no result."
    if not told.is_current:
        yield "The run was started again since: it is about the run as it was."
    if told.notes:
        yield _items(told.notes)
    if told.judged:
        rows = [(j.step, j.verdict, j.by, j.seconds, j.reason) for j in told.judged]
        yield table(("step", "verdict", "by", "seconds", "reason"), rows, plain)


def _alerts(report: Report) -> Iterator[str]:
    if report.recorded is None:
        return
    yield "## Alerts"
    rows: list[tuple[Any, ...]] = [
        (
            one.step,
            one.detector,
            one.layer + (f" and {one.layers - 1} more" if one.layers > 1 else ""),
            one.severity,
            one.text,
        )
        for one in report.alerts
    ]
    heads = ("step", "detector", "layer", "severity", "text")
    yield table(heads, rows, plain) if rows else "None."
    told = f"{report.alert_count:,} alerts in all"
    if len(rows) < report.alert_count:
        yield f"{told}; those of one step and detector are one row, the first are shown."
    yield from map(plain, report.recurring)


def _checkpoints(report: Report) -> Iterator[str]:
    yield "## Checkpoints"
    shown_ones = report.told_checkpoints()
    rows, before = [], ""
    for one in shown_ones:
        why = "; ".join((*one.reasons, *one.notes))
        judged = "; ".join(report.judged_of(one.step))
        rows.append((one.step, one.status, judged, "as above" if why and why == before else why))
        before = why
    heads = ("step", "status when saved", "judged", "reasons")
    yield table(heads, rows, plain) if rows else "None."
    if left := len(report.checkpoints) - len(shown_ones):
        yield f"{left:,} more, clean or untested and far from the answer, are left out."
    yield from map(plain, report.remarks)


def _attempts(report: Report) -> Iterator[str]:
    if not report.attempts:
        return
    yield "## Environment"
    told = report.told_attempts()
    if len(told) < len(report.attempts):
        yield f"{len(report.attempts):,} attempts; those before which nothing changed are left out."
    for one in told:
        facts = ", ".join(f"{k} {one.environment[k]}" for k in _SHORT if k in one.environment)
        text = f"Attempt {one.attempt}, {utc(one.started)}, from step {one.first_step}"
        yield plain(f"{text}: {facts}." if facts else f"{text}.")
        if one.changed:
            rows = [(name, str(was), str(now)) for name, was, now in one.changed]
            yield table(("changed", "before", "now"), rows, plain)


_SHORT: Final = ("host", "python", "cpu", "world_size", "optimizer")


def _unseen(report: Report) -> Iterator[str]:
    if report.blind or report.unseen:
        yield "## Not seen by the guard"
    if report.unseen:
        yield _items(report.unseen)
    if report.blind:
        yield table(("step", "event", "detail"), report.blind, plain)
    if report.damaged:
        yield "## Damaged files"
        yield table(("file", "error"), report.damaged, plain)
