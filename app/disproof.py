"""How sure an answer is, in words, and what would show that it is wrong. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from forensics.reporting.facts import Headline
from forensics.result import STORED_BYTES

# What each verdict does not settle, and what would overturn it: see docs/verdicts.md.
_OVERTURNED: Final = {
    "intermittent": (
        "A further replay on the same host that differs from the others, or agrees with the "
        "record: then the training does not repeat, and a difference says nothing.",
        "A line of the script, or a file, an iterator or an extension with state of its own, that "
        "was another one at this step alone.",
    ),
    "persistent on a device": (
        "Another device of the same kind that computes what the accused one computed.",
    ),
    "data or software": (
        "A replay on another machine with the same program and batch that differs.",
    ),
    "storage": (
        "Reading the file again, on another machine, with the bytes that its manifest has: then "
        "the way to it was wrong and not the file.",
    ),
    "undetermined": ("A replay on the run's own host: it settles what this one leaves open.",),
}
VERDICTS: Final = tuple(_OVERTURNED)


def confidence(answer: Headline) -> str:
    """How sure the answer is, in a sentence."""
    if answer.state == "corrupt":
        if answer.exact:
            return "Proven by an exact comparison, and located exactly."
        return "Proven by an exact comparison; where it began is known as a range only."
    if answer.state == "suspect":
        if answer.source.startswith("session"):
            return "A suspicion: what judged may err. Only an exact comparison convicts."
        return "A suspicion: statistics suspect and do not convict."
    if answer.state == "clean":
        return "No finding: as sure as what was looked at, and no further."
    return "Not known: too little was recorded or judged to say."


def disproof(answer: Headline) -> list[str]:
    """What would show that the answer is wrong, a sentence each."""
    return list(dict.fromkeys(_disproof(answer)))


def _says_refresh(answer: Headline) -> bool:
    """Whether it rests on an alert that a script's own write to a tensor would explain."""
    alerts = answer.proven and answer.source == "alerts"
    return alerts and any("guard.refresh()" in text for text in answer.rests_on)


def _disproof(answer: Headline) -> Iterator[str]:
    if answer.state == "clean":
        yield "A replay that differs: sdc-bisect verify compares every recorded bit of its steps."
        return
    if answer.state == "unknown":
        return
    if answer.kind == STORED_BYTES or answer.is_of_files:
        yield from _OVERTURNED["storage"]
    elif answer.verdict in _OVERTURNED:
        yield from _OVERTURNED[answer.verdict]
    if answer.kind == "state at rest" or _says_refresh(answer):
        yield (
            "A script that wrote to this tensor itself between the two steps: then "
            "guard.refresh() belongs after that line, and nothing is corrupt."
        )
    if answer.source == "alerts" and answer.first_corrupt is not None:
        yield (
            "A search that finds an earlier corrupt checkpoint: sdc-bisect run, "
            "with --scan for all of them."
        )
    if not answer.proven:
        yield (
            "A replay of the steps in between without a difference: the judge was wrong then, or "
            "the training itself made what is unusual."
        )
    if answer.source.startswith("session") and answer.verdict is None:
        yield (
            "A clean checkpoint after a corrupt one: that what is corrupt stays corrupt is "
            "assumed. sdc-bisect run --scan judges all."
        )
