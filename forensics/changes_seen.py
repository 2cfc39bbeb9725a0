"""Every change from one checkpoint to the next, of its file and of its state apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from .oracles.judgement import Judgement, Oracle
from .search import Verdict
from .search.verdicts import transitions

FILE: Final = "file"
STATE: Final = "state"
_OF_BYTES: Final = ("integrity",)
_UNKNOWN: Final = ("command", "user", "several")  # what they looked at nobody knows

Change = dict[str, Any]
Changes = tuple[Change, ...]


def changes_of(
    steps: Sequence[int], judgements: Mapping[int, Judgement], oracle: Oracle
) -> Changes:
    """The changes that the judgings of a search show: {from, to, verdicts, kind}.

    `kind` is "file" where stored bytes are wrong, or are right again; "state" of the training,
    whose changes pass over damaged files; None where the judge does not say which.

    Args:
        steps: by place.
        judgements: by place, of all.
        oracle: whose they are.
    """
    kind = None if oracle.name in _UNKNOWN else STATE
    files: dict[int, Verdict] = {}
    state: dict[int, Verdict] = {}
    for place, one in judgements.items():
        if one.stored_bytes:
            files[place] = "corrupt"
        elif one.verdict != "untestable":
            files[place] = "clean"
            state[place] = one.verdict
    found = []
    if "corrupt" in files.values():
        found += _named(steps, files, FILE)
    if oracle.name not in _OF_BYTES:
        found += _named(steps, state, kind)
    return in_order(found)


def in_order(changes: Iterable[Change]) -> Changes:
    """Those of one or of two judges by step, each once."""
    by_place = {(one["from"], one["to"], one["kind"] or ""): one for one in changes}
    return tuple(by_place[key] for key in sorted(by_place))


def in_words(changes: Sequence[Mapping[str, Any]] | None) -> list[str]:
    """A line for each."""
    return [
        f"{one['kind'] + ': ' if one.get('kind') else ''}from {one['verdicts'][0]} to "
        f"{one['verdicts'][1]}: ({one['from']}, {one['to']}]"
        for one in changes or ()
    ]


def _named(steps: Sequence[int], verdicts: Mapping[int, Verdict], kind: str | None) -> list[Change]:
    return [
        {
            "from": steps[one.start],
            "to": steps[one.end],
            "verdicts": list(one.verdicts),
            "kind": kind,
        }
        for one in transitions(verdicts)
    ]
