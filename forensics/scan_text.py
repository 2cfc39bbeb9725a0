"""What `sdc-bisect scan` prints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from .index_text import names_of_several, notes_text, reasons_text
from .scanning import Scanned, not_checkable

_STATUSES = ("corrupt", "suspect", "clean", "untested")
_MOST_NAMED = 6  # tensors in a line
_MOST_FOREIGN = 2
_REPEATED = 3  # checkpoints that all say a thing say it once, below the list


def scan_line(one: Scanned, name: str = "") -> str:
    """A checkpoint's line: step, verdict, why, and in brackets what is worth telling.

    Args:
        one: the checkpoint.
        name: of its file, where others are of that step, too.
    """
    checkpoint = one.checkpoint
    verdict = one.status if one.readable else "unreadable"
    told = name + reasons_text(one.reasons) + notes_text([*checkpoint.notes, *_not_evaluated(one)])
    return f"{checkpoint.step:>10}  {verdict:<10}{told}".rstrip()


def scan_lines(found: Sequence[Scanned], *, values: bool = False) -> list[str]:
    """A line for each checkpoint, and a summary.

    Args:
        found: by step.
        values: whether those of the clean ones were looked at, too.
    """
    names = names_of_several([one.checkpoint for one in found])
    shared = _said_by_all(found)
    lines = [
        line
        for one, name in zip(found, names, strict=True)
        for line in (scan_line(_without(one, shared), name), *_parts(one))
    ]
    lines += [f"each of them: {text}" for text in shared]
    lines += summary(found)
    return lines + not_looked_at(found, values=values)


def _said_by_all(found: Sequence[Scanned]) -> list[str]:
    """Reasons and notes that every one has, where they are several."""
    if len(found) < _REPEATED:
        return []
    said = [(*one.reasons, *one.checkpoint.notes) for one in found]
    return [text for text in dict.fromkeys(said[0]) if text and all(text in one for one in said)]


def _without(one: Scanned, texts: Sequence[str]) -> Scanned:
    notes = tuple(note for note in one.checkpoint.notes if note not in texts)
    reasons = tuple(reason for reason in one.reasons if reason not in texts)
    return replace(one, reasons=reasons, checkpoint=replace(one.checkpoint, notes=notes))


def not_looked_at(found: Sequence[Scanned], *, values: bool) -> list[str]:
    """What a clean checkpoint was not asked about, in a line; [] where its values were looked at.

    Args:
        found: by step.
        values: whether those of the clean ones were looked at, too.
    """
    if values or not any(one.status == "clean" for one in found):
        return []
    return [
        "clean: the bytes that were written, or sealed; whether their values are sound, even "
        "finite, was not looked at: --statistics does"
    ]


def _not_evaluated(one: Scanned) -> list[str]:
    if not one.foreign:
        return []
    named = [f"{name} ({kind})" for name, kind in list(one.foreign.items())[:_MOST_FOREIGN]]
    more = f" and {len(one.foreign) - _MOST_FOREIGN:,} more"
    return [f"not evaluated: {', '.join(named)}{more * (len(one.foreign) > _MOST_FOREIGN)}"]


def _parts(one: Scanned) -> list[str]:
    """The damaged and the intact tensors of a corrupt checkpoint, by name."""
    if one.status != "corrupt":
        return []
    sound = one.intact or one.unchecked
    what = "intact" if one.intact else "not damaged as far as it can be seen"
    lines = [f"{'':>12}damaged: {_few(list(one.damaged))}"]
    return [*lines, f"{'':>12}{what}: {_few(sound)}"] if sound else lines


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED:,} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def summary(found: Sequence[Scanned]) -> list[str]:
    """How many there are of each verdict, how much was read, and what could not be checked."""
    counts = Counter(one.status if one.readable else "unreadable" for one in found)
    named = [f"{counts[name]:,} {name}" for name in (*_STATUSES, "unreadable") if counts[name]]
    size = sum(one.bytes for one in found)
    noun = "checkpoint" if len(found) == 1 else "checkpoints"
    lines = [f"{len(found):,} {noun}: {', '.join(named)}; {size:,} bytes read"]
    lines += [f"not checkable: {line}" for line in not_checkable(found)]
    if counts["suspect"]:
        lines.append("suspect is no proof: it is what contradicts itself, or looks unusual")
    return lines
