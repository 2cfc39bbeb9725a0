"""The answers of Timeline, Locate and Bisect before anybody searches, in sentences. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .records import Alert, Checkpoint, Incident, checkpoint_bracket
from .sessions import SessionResult, newest_bracket
from .verdict import State
from .wording import bits_text


@dataclass(frozen=True)
class Said:
    """An answer.

    Attributes:
        state: of the evidence that it rests on; "unknown" where there is none.
        sentence: the answer.
        reasons: what else is known, a sentence each.
    """

    state: State
    sentence: str
    reasons: tuple[str, ...] = ()


def leading(incidents: Sequence[Incident]) -> Incident | None:
    """The incident to look at first: the first proven one, or else the first."""
    return min(incidents, key=lambda x: (not x.proven, x.opened), default=None)


def chosen(incidents: Sequence[Incident], key: str | None) -> Incident | None:
    """The incident of this key, or else the one to look at first; None without any."""
    return next((one for one in incidents if one.key == key), leading(incidents))


def when(
    incidents: Sequence[Incident],
    kept: Sequence[Checkpoint],
    results: Sequence[SessionResult],
) -> Said:
    """When it started."""
    found, first = newest_bracket(results), leading(incidents)
    if found is not None:
        after = "the start" if found.last_clean is None else f"step {found.last_clean:,}"
        sentence = f"After {after}, and not after step {found.first_corrupt:,}"
        state: State = "corrupt" if found.proven else "suspect"
        alerted = (_first_alert(first),) if first is not None else ()
        return Said(state, f"{sentence}: session {found.session} of sdc-bisect.", alerted)
    between = _between(kept)
    if first is not None:
        return Said("corrupt" if first.proven else "suspect", _first_alert(first), between)
    if between:
        corrupt = any(one.status == "corrupt" for one in kept)
        return Said("corrupt" if corrupt else "suspect", between[0])
    text = "No incident has started: no alert, and no checkpoint is suspect or corrupt."
    return Said("unknown", text)


def _first_alert(first: Incident) -> str:
    how = "proven by an exact comparison" if first.proven else "from statistics alone"
    return f"The first alert is of step {first.opened:,}, {how}."


def _between(kept: Sequence[Checkpoint]) -> tuple[str, ...]:
    band = checkpoint_bracket(kept)
    if band is None:
        return ()
    status = next(one.status for one in kept if one.step == band[1])
    clean = "no clean one before it" if band[0] is None else f"last clean one: step {band[0]:,}"
    return (f"First {status} checkpoint: step {band[1]:,}; {clean}.",)


def where(incident: Incident | None, alerts: Sequence[Alert]) -> Said:
    """Which layer and rank: of the incident's alerts, the first that names a layer.

    Args:
        incident: the one looked at; None without any.
        alerts: of it, in their order.
    """
    if incident is None:
        text = "No alert names a layer. Colours show what is unusual, and prove nothing."
        return Said("unknown", text)
    state: State = "corrupt" if incident.proven else "suspect"
    named = named_alert(alerts)
    if named is None:
        text = f"The incident of step {incident.opened:,} names no layer: its alerts are about "
        return Said(state, text + "the whole step.")
    element, bits = named.detail.get("index"), bits_text(named.detail.get("bits"))
    at = "" if element is None else f", element {element}"
    at += f", {'bits' if ',' in bits else 'bit'} {bits}" if bits else ""
    how = "proven" if named.severity == "proven" else "from statistics alone"
    rank = rank_of(named)
    who = f" on rank {rank}" if rank is not None else ""
    if rank is None:
        how += ", and which rank is wrong is not known"
    sentence = f"{named.layer}{who}, step {named.step:,}{at}: {how}."
    layers = len({alert.layer for alert in alerts if alert.layer})
    more = (f"Its alerts name {layers:,} layers in all.",) if layers > 1 else ()
    return Said(state, sentence, more)


def named_alert(alerts: Sequence[Alert]) -> Alert | None:
    """The first alert that names a layer, a proven one rather than another."""
    named = [alert for alert in alerts if alert.layer]
    return min(named, key=lambda alert: alert.severity != "proven", default=None)


def rank_of(alert: Alert) -> int | None:
    """The rank that an alert accuses; None where ranks differ and none is named."""
    if "culprit" not in alert.detail:
        return alert.rank
    culprit = alert.detail["culprit"]
    return culprit if isinstance(culprit, int) else None


def which(kept: Sequence[Checkpoint]) -> Said:
    """Which checkpoint, as the guard alone knows it."""
    text = "Nobody has searched this run yet"
    between = _between(kept)
    if not kept:
        return Said("unknown", f"{text}, and it has no checkpoint to search.")
    if between:
        since = ", and what was proven since" if any(one.convicted for one in kept) else ""
        about = f"{text}: that is what the guard knew when they were saved{since}."
        return Said("suspect", between[0], (about,))
    said = "The guard held none back when they were saved; what happened to the files since, a "
    return Said("unknown", f"{text}.", (said + "search tells.",))
