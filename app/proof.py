"""What a replay proved of the run as it is now: which layer and rank, at which step."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from forensics.journal import Session

from .answers import Said
from .records import Incident
from .sessions import BATCH, SessionResult
from .wording import count

if TYPE_CHECKING:
    from forensics.reporting.facts import Headline

_UNNAMED: Final = "Which layer is wrong it does not say."
_OF_ALL: Final = (
    "No layer is at fault: what the step left differs everywhere, for the batch was another one."
)


@dataclass(frozen=True)
class Proof:
    """What a replay proved.

    Attributes:
        said: the answer, and what it rests on.
        step: the first that is wrong.
        layer: "" where none is named.
        rank: None where it is not known.
    """

    said: Said
    step: int
    layer: str
    rank: int | None


def newest_proof(
    results: Sequence[SessionResult], incident: Incident | None
) -> SessionResult | None:
    """The newest replay that proves a step wrong.

    Args:
        results: of all sessions, oldest first.
        incident: that the reader chose, or None; one that began before the step that was proven
            is not explained by it.
    """
    for one in reversed(results):
        if one.accuses and one.proven and one.is_replay and one.first_corrupt is not None:
            earlier = incident is not None and incident.opened < one.first_corrupt
            return None if earlier else one
    return None


def proof_of(
    run: Path, found: SessionResult, dtypes: Mapping[str, str], attempts: int
) -> Proof | None:
    """What a session proves, as its report says it; None where it cannot be read any more.

    Args:
        run: the run's folder.
        found: one of its sessions.
        dtypes: layer to dtype, by their names.
        attempts: how often the run was started by now.
    """
    # here, as they take torch, which a page without such a session need not wait for
    from forensics.reporting.headline import of_session
    from forensics.reporting.sessions_told import told

    session = next((one for one in Session.all(run) if one.folder.name == found.session), None)
    known = None if session is None else told(session, attempts=attempts)
    if known is None or known.result is None:
        return None
    return _proof(of_session(known, dtypes), found, dtypes)


def _proof(answer: Headline, found: SessionResult, layers: Collection[str]) -> Proof | None:
    if answer.first_corrupt is None:
        return None
    names = [str(one["name"]) for one in answer.tensors if one.get("name") in layers]
    layer = names[0] if names and answer.kind != BATCH else ""
    more = [f"Proven by a replay: session {found.session} of sdc-bisect."]
    if answer.kind == BATCH:
        more.append(_OF_ALL)
    elif not layer:
        more.append(_UNNAMED)
    elif others := len(set(names)) - 1:
        more.append(f"It names {count(others, 'layer')} more.")
    if answer.rank is None:
        more.append("Which rank is wrong is not known.")
    said = Said(answer.state, answer.sentence, (*more, *map(_sentence, answer.rests_on)))
    return Proof(said, answer.first_corrupt, layer, answer.rank)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}."
