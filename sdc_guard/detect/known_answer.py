"""A device's answers to one question, one after the other, and what their differences prove.

Two answers of one device to one question under the same settings that differ are an exact
comparison: one of them is wrong. An answer is wrong by itself where it can be known beforehand,
or where two inputs gave one output. Which of two others is wrong is a matter of how often each
was given.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal

from .alert import Alert, Severity
from .answers import Answer, Known, as_detail, differing, relative_difference, size_in_words

DETECTOR: Final = "known_answer"
REPEATS: Final = 2  # of a question whose answer was odd
Course = Literal["intermittent", "persistent", "changing"]
_SAID: Final[dict[Course, str]] = {
    "intermittent": "asked again twice, nothing was wrong: intermittent",
    "persistent": "asked again twice, it answered the same: persistent",
    "changing": "asked again twice, it was neither right nor the same both times: changing",
}


@dataclass
class AnswerWatch:
    """Follows the answers of one device to one question under one environment.

    Args:
        where: the device, in words.
        known: what is known of the answer.

    Attributes:
        reference: the first answer that was repeated at once and is not wrong by itself.
        confirmed: how often the reference was given.
    """

    where: str
    known: Known
    reference: Answer | None = None
    confirmed: int = 0
    _first: Answer | None = None
    _odd: list[Answer] = field(default_factory=list)
    _step: int = 0
    _standing: str = ""  # hash of an odd answer that was told, and has been given ever since

    def take(self, step: int, answer: Answer) -> tuple[list[Alert], int]:
        """Take in an answer.

        Returns:
            alerts, and how often the question is to be asked again now.
        """
        if self._odd:
            self._odd.append(answer)
            return (self._conclude(), 0) if len(self._odd) > REPEATS else ([], 0)
        if not self._is_odd(answer):
            return [], self._usual(answer)
        if answer.hash == self._standing:
            return [], 0
        self._odd, self._step = [answer], step
        return [], REPEATS

    def _usual(self, answer: Answer) -> int:
        self._standing = ""
        if self.reference is None and self._first is None:
            self._first = answer  # not yet a reference: it has to come twice
            return 1
        self.reference = self.reference or answer
        self.confirmed += 1 + (self.confirmed == 0)
        return 0

    def _is_odd(self, answer: Answer) -> bool:
        if answer.is_constant or answer.wrong(self.known):
            return True
        usual = self.reference or self._first
        return usual is not None and usual.hash != answer.hash

    def _conclude(self) -> list[Alert]:
        odd, *again = self._odd
        self._odd = []
        usual = self.reference or self._first
        course = self._course(odd, again)
        self._standing = again[-1].hash if self._is_odd(again[-1]) else ""
        detail: dict[str, Any] = {
            "device": self.where,
            "answer": as_detail(odd),
            "again": [answer.hash for answer in again],
            "course": course,
            "usual": None if usual is None else as_detail(usual),
            "usual_given": self.confirmed or int(usual is not None),
            "given": 1 + sum(answer.hash == odd.hash for answer in again),
        }
        reason = self._reason(odd, usual, detail)
        if course == "persistent" and detail["kind"] == "differs" and not self.confirmed:
            self.reference, self.confirmed, self._standing = odd, detail["given"], ""
        text = f"the known answer on {self.where}: {reason}; {_SAID[course]}"
        return [_alert(self._step, "proven", detail, text)]

    def _reason(self, odd: Answer, usual: Answer | None, detail: dict[str, Any]) -> str:
        """Why it is odd, the strongest first."""
        if odd.is_constant:
            detail["kind"] = "constant"
            return "two different inputs gave the same output: the device returns constants"
        wrong = odd.wrong(self.known)
        if wrong:
            detail |= {"kind": "wrong", "parts": list(wrong)}
            return f"{', '.join(wrong)}: not what integer arithmetic gives"
        assert usual is not None
        size = _sized(odd, usual, self.known, detail)
        detail["kind"] = "differs"
        return (
            "this device computed two different answers to the same question under the same "
            f"settings, the earlier one {_times(detail['usual_given'])} and this one "
            f"{_times(detail['given'])} ({size})"
        )

    def _course(self, odd: Answer, again: list[Answer]) -> Course:
        hashes = {answer.hash for answer in again}
        if hashes == {odd.hash}:
            return "persistent"
        sound = not any(self._is_odd(answer) for answer in again)
        return "intermittent" if sound and len(hashes) == 1 else "changing"


def recorded_alert(
    step: int, where: str, mine: Answer, theirs: Answer, known: Known, source: dict[str, Any]
) -> Alert:
    """The alert for an answer that differs from one recorded by another process.

    It suspects and does not convict: the two processes are alike as far as is recorded, two
    answers do not say which is wrong, and libraries may choose kernels by what is not recorded.

    Args:
        source: "host" and "device_id" of the recorded answer.
    """
    detail: dict[str, Any] = {
        "device": where,
        "kind": "differs from recorded",
        "answer": as_detail(mine),
        "recorded": as_detail(theirs) | source,
    }
    size = _sized(mine, theirs, known, detail)
    text = (
        f"the known answer on {where} differs from the one that {source['host']} recorded for this "
        f"kind of device and these settings ({size}); two answers do not say which is wrong"
    )
    return _alert(step, "suspect", detail, text)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _sized(one: Answer, other: Answer, known: Known, detail: dict[str, Any]) -> str:
    relative = relative_difference(one.numbers, other.numbers)
    parts = differing(one, other, known)
    size = size_in_words(relative)
    detail |= {"parts": list(parts), "relative": relative.hex(), "size": size}
    return f"{', '.join(parts)}; {size}"


def _alert(step: int, severity: Severity, detail: dict[str, Any], text: str) -> Alert:
    return Alert(
        step=step,
        detector=DETECTOR,
        layer=None,
        layer_name="",
        score=1.0,
        threshold=0.0,
        severity=severity,
        detail={"text": text} | detail,
    )
