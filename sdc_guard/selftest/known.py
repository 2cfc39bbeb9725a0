"""The known answer on this machine, and what a run recorded for machines like it."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from ..detect.answers import Answer, Known, differing, relative_difference, size_in_words
from ..errors import RunNotFound
from ..signals.device_names import word_for
from ..signals.environment import differences
from ..signals.probe import Probe, probes_of
from ..signals.probe_environment import built, in_force, key_of
from ..store.known_answers import RecordedAnswer, all_recorded
from .comparison import answer_of
from .line import Bench, Outcome, Trial

SECTION = "known answer"
_REPEATS = 10


def trials_of(bench: Bench) -> list[Trial]:
    """A line for each device and dtype, and one for each against the run's."""
    names = [
        (device, dtype)
        for device in bench.devices
        for dtype in (("float32", "bfloat16") if device.type == "cuda" else ("float32",))
    ]
    found = [
        Trial(SECTION, f"{dtype} on {word_for(device)}", partial(repeated, device, dtype))
        for device, dtype in names
    ]
    if bench.run is not None:
        found += [
            Trial(SECTION, f"{dtype} on {device} as recorded", partial(recorded, device, dtype))
            for device, dtype in names
        ]
    return found


def environment_of(device: torch.device, dtype: str) -> dict[str, Any]:
    """What the answer depends on; its key is `key_of`."""
    return built(device) | in_force(device) | {"block": dtype}


def repeated(device: torch.device, dtype: str, bench: Bench) -> Outcome:
    """Asked ten times: right where it can be known, not constant, and always the same."""
    del bench
    probe = probes_of(device)[dtype]
    answers = [answer_of(probe) for _ in range(_REPEATS)]
    first = answers[0]
    detail = {
        "hash": first.hash,
        "environment": key_of(environment_of(device, dtype)),
        "numbers": [value.hex() for value in first.numbers.tolist()],
    }
    for answer in answers:
        if wrong := _wrong(answer, probe.known):
            return Outcome("FAIL", wrong, detail)
    others = [answer for answer in answers if answer.hash != first.hash]
    if others:
        size = _size(first, others[0], probe.known)
        return Outcome("FAIL", f"{len(others)} of {_REPEATS} answers differ: {size}", detail)
    text = f"{first.hash} in environment {detail['environment']}, {_REPEATS} times"
    return Outcome("PASS", text, detail)


def recorded(device: torch.device, dtype: str, bench: Bench) -> Outcome:
    """The answer that the run has for this kind of device and these settings."""
    assert bench.run is not None
    known = all_recorded(bench.run)
    if not known:
        raise RunNotFound(
            "no known answer is recorded there", where=str(bench.run),
            next_step="give the folder of a run whose guard had probe_every",
        )  # fmt: skip
    environment = environment_of(device, dtype)
    theirs = known.get(key_of(environment))
    if theirs is None:
        return Outcome("INCOMPLETE", _nearest(environment, known))
    probe = probes_of(device)[dtype]
    mine = answer_of(probe)
    source = f"by {theirs.host} at step {theirs.step}"
    if mine.hash == theirs.answer.hash:
        return Outcome("PASS", f"{mine.hash}, as recorded {source}")
    size = _size(mine, theirs.answer, probe.known)
    return Outcome(
        "FAIL", f"differs from the one recorded {source}: {size}; which is wrong is not known"
    )


def _wrong(answer: Answer, known: Known) -> str:
    if answer.is_constant:
        return "two different inputs gave the same output: the device returns constants"
    wrong = answer.wrong(known)
    return f"{', '.join(wrong)}: not what integer arithmetic gives" if wrong else ""


def _size(one: Answer, other: Answer, known: Known) -> str:
    parts = ", ".join(differing(one, other, known))
    return f"{parts}; {size_in_words(relative_difference(one.numbers, other.numbers))}"


def _nearest(environment: dict[str, Any], known: dict[str, RecordedAnswer]) -> str:
    """Why there is nothing to compare with."""
    apart = min(
        (differences(dict(one.environment), environment) for one in known.values()), key=len
    )
    said = "; ".join(f"{name}: {there} there, {here} here" for name, (there, here) in apart.items())
    return f"nothing recorded for this environment; the nearest differs in {said}"[:400]


__all__ = ["SECTION", "Probe", "environment_of", "recorded", "repeated", "trials_of"]
