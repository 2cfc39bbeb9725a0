"""The answer in one sentence that claims no more than the result does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sdc_guard.detect.replica_alerts import DETECTOR as REPLICAS
from sdc_guard.store.machines import Device, Machine

from .two_findings import training_in_words
from .unread import in_words
from .watched import percent

# how a sentence begins that accuses no checkpoint
_NOTHING: Final = ("Nothing corrupt", "Clean as far as recorded: nothing", "Suspect, not proven: ")
# a class whose name says more than is shown
_CLASSES: Final = {"optimizer update": "update, or a gradient after the backward"}
_JUDGES: Final = {
    "user": "by hand",
    "command": "by a command",
    "statistics": "by a statistic",
    "consistency": "by what contradicts itself",
    "integrity": "by checksums",
    "shadow": "by the shadow loss",
    "trace": "by the trace",
}


def sentence(result: Mapping[str, Any]) -> str:
    """The sentence for a result as it is stored, also by earlier versions."""
    found, unread = _found(result), in_words(result.get("unreadable", ()))
    if not unread:
        return found
    if found.startswith(_NOTHING):
        return f"{found.removesuffix('.')}; but {unread}."
    return f"{found} {unread[0].upper()}{unread[1:]}."


def _found(result: Mapping[str, Any]) -> str:
    clean, corrupt = result["last_clean"], result["first_corrupt"]
    if not result.get("stable", True):
        return "No stable boundary: the judge fails by chance, before it and after it."
    if "first_clean" in result:
        return _first_clean(result)
    if corrupt is None:
        return _nothing(result, clean)
    if by := result.get("proven_by"):
        return _proven_before(result, by)
    between = f"({'start' if clean is None else clean}, {corrupt}]"
    if str(result["schema"]["name"]).endswith("verify"):
        return _verified(result, corrupt, between)
    return _located(result, corrupt, between)


def machine_in_words(machine: Any) -> str:
    """Where the named rank ran, as it is stored in a result; empty where that is not known."""
    if not isinstance(machine, Mapping):
        return ""
    devices = [
        Device(str(one["name"]), *(_text(one.get(key)) for key in ("uuid", "serial")))
        for one in machine.get("devices") or ()
        if isinstance(one, Mapping) and one.get("name")
    ]
    rank, attempt = machine.get("rank"), machine.get("attempt")
    found = Machine(0, 0, _text(machine.get("host")), tuple(devices))
    return f"rank {rank} ran on {found.text}, as it recorded when attempt {attempt} began"


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def alert_in_words(alert: Mapping[str, Any]) -> str:
    """What a proven alert proves and since when, without a full stop."""
    step, after = alert["step"], alert["after"]
    if alert["detector"] != REPLICAS:
        return f"Proven by another comparison than this: step {step}, {alert['detector']}"
    if after is None:
        return (
            f"Ranks differ since the comparison of step {step}, proven; the last one at which they "
            "were equal is not recorded"
        )
    return (
        f"Ranks differ, proven: equal at step {after}, different at step {step}, so they went "
        f"apart in ({after}, {step}]"
    )


def _with_alert(result: Mapping[str, Any], alert: Mapping[str, Any]) -> str:
    """That nothing was found by what was judged, which is not that nothing is corrupt."""
    if str(result["schema"]["name"]).endswith("verify"):
        return f"{alert_in_words(alert)}. A replay up to step {result['last_clean']} has it, too."
    doubts = f"; suspect: {_of(suspect)}" if (suspect := result.get("suspect")) else ""
    judged = [one for one in result.get("probes", ()) if one.get("verdict") == "clean"]
    last = max((one["step"] for one in judged), default=None)
    upto = "" if last is None else f" up to step {last}"
    return (
        f"{alert_in_words(alert)}. What was judged of the checkpoints is sound{upto}, and says "
        f"nothing of what was computed{doubts}."
    )


def _proven_before(result: Mapping[str, Any], by: Mapping[str, Any]) -> str:
    """A replay's proof before what a search of bytes makes of the checkpoints that hold it."""
    who = f"session {by['session']}" if by.get("session") else "a replay before"
    clean = result["last_clean"]
    doubts = f"; suspect: {_of(suspect)}" if (suspect := result.get("suspect")) else ""
    return (
        f"Step {by['step']} is wrong, proven by {who}: the fault lies in "
        f"({'start' if clean is None else clean}, {by['step']}]. The bytes of checkpoints do not "
        f"show what a step computed{doubts}."
    )


def _nothing(result: Mapping[str, Any], clean: int | None) -> str:
    if alert := result.get("proven_alert"):
        return _with_alert(result, alert)
    unread = {one["step"] for one in result.get("unreadable", ())}
    left = [step for step in result["skipped"] if step not in unread]
    untestable = f"; untestable: {_steps(left)}" if left or not unread else ""
    confidence = result.get("confidence")
    if confidence is not None and result.get("likely", [{}])[0].get("step") is not None:
        return "Undecided: that none is corrupt is not excluded, and neither is that one is."
    start = "Clean as far as recorded: nothing" if _partly(result) else "Nothing"
    if suspect := result.get("suspect"):
        recorded = ", as far as recorded," if _partly(result) else ""
        noun = "checkpoint" if len(suspect) == 1 else "checkpoints"
        start = f"Suspect, not proven: {noun} {_of(suspect)}; nothing{recorded}"
    sure = "" if confidence is None else f", with a probability of {percent(confidence)}"
    return f"{start} corrupt was found up to step {clean}{sure}{untestable}."


def _located(result: Mapping[str, Any], corrupt: int, between: str) -> str:
    certainty = _certainty(result)
    confidence = result.get("confidence")
    if confidence is not None:
        certainty = f"with a probability of {percent(confidence)}, {certainty}"
    recorded = ", as far as recorded" if _partly(result) else ""
    if corrupt in result.get("trusted", ()):
        return (
            f"Checkpoint {corrupt} is corrupt by your word, no judge looked at it; the first "
            f"corrupt one is in {between}: {certainty}."
        )
    if result.get("state") is not None:
        return _damaged(result, corrupt, between, recorded)
    if result["exact"]:
        one = f"Checkpoint {corrupt} is the first corrupt one"
        if result.get("claim") != "transition":
            return f"{one}{recorded}: bracket {between}, {certainty}."
        return f"{one} if what is corrupt stays corrupt: a transition, {between}, {certainty}."
    skipped = f"untestable: {_steps(result['skipped'])}; " if result["skipped"] else ""
    if result.get("claim") != "transition":
        return f"The first corrupt one is in {between}; {skipped}{certainty}."
    if result.get("monotone") is False:
        what = f"Not monotone: a transition, not the first, is in {between}"
    else:
        what = f"The first corrupt one, if what is corrupt stays corrupt, is in {between}"
    return f"{what}; {skipped}{certainty}."


def _damaged(result: Mapping[str, Any], corrupt: int, between: str, recorded: str) -> str:
    """A file that is not what was written, and apart from it what is known of the training."""
    certainty = _certainty(result)
    if result["exact"]:
        file = (
            f"Checkpoint {corrupt} is the first corrupt one by its file, which is damaged: bracket "
            f"{between}, {certainty}; do not restore from it."
        )
    elif any(step < (result["last_clean"] or corrupt) for step in result["skipped"]):
        file = (
            f"The file of checkpoint {corrupt} is damaged, {certainty}: do not restore from it; "
            f"one before it may be, too, untestable: {_steps(result['skipped'])}."
        )
    else:
        file = (
            f"The first damaged file is in {between}, that of checkpoint {corrupt} is one: do not "
            f"restore from it; untestable: {_steps(result['skipped'])}; {certainty}."
        )
    return f"{file} {training_in_words(result['state'], corrupt, recorded)}"


def _first_clean(result: Mapping[str, Any]) -> str:
    corrupt, clean = result["last_corrupt"], result["first_clean"]
    skipped = _steps(result["skipped"])
    if corrupt is None:
        return f"Nothing corrupt was found: checkpoint {clean} is clean already."
    if clean is None:
        return f"No clean checkpoint follows: corrupt up to step {corrupt}; untestable: {skipped}."
    between = f"({corrupt}, {clean}]"
    condition = "" if result.get("claim") != "transition" else ", if what is clean stays clean,"
    if result["exact"]:
        return f"Checkpoint {clean}{condition} is the first clean one: {between}, not proven."
    return f"The first clean one{condition} is in {between}; untestable: {skipped}; not proven."


def _verified(result: Mapping[str, Any], corrupt: int, between: str) -> str:
    certainty = "proven" if result["proven"] else "not proven"
    rank = "unknown" if result["rank"] is None else result["rank"]
    kind = _CLASSES.get(str(result["class"]), result["class"])
    what = f"class: {kind}; verdict: {result['verdict']}; rank: {rank}."
    if result["exact"]:
        return f"Step {corrupt} is the first that differs ({certainty}); {what}"
    return (
        f"Step {corrupt} is the first whose record differs ({certainty}), the fault lies in "
        f"{between}; {what}"
    )


def _certainty(result: Mapping[str, Any]) -> str:
    if result["proven"]:
        return "proven"
    judges = dict.fromkeys(
        _JUDGES.get(probe.get("oracle", ""), "")
        for probe in result.get("probes", ())
        if probe.get("verdict") != "untestable"
    )
    by = [judge for judge in judges if judge]
    return f"not proven, judged {' and '.join(by)}" if by else "not proven"


def _partly(result: Mapping[str, Any]) -> bool:
    watched = result.get("watched")
    return watched is not None and watched < 1


def _of(checkpoints: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(str(one["step"]) for one in checkpoints)


def _steps(steps: Sequence[int]) -> str:
    return ", ".join(map(str, steps)) or "none"
