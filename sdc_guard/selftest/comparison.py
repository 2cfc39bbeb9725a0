"""Whether comparing itself sees every bit: of a NaN, of a zero's sign, of a probe's question."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..detect.answers import Answer
from ..detect.known_answer import AnswerWatch
from ..digest import digest_tensor
from ..inject.bits import flip_bit
from ..signals.probe import Probe
from .line import Bench, Outcome, Trial

_SECTION = "comparisons"
# pairs that a comparison of floating-point values takes for equal, or for always unequal
_PAIRS = {
    "a NaN's payload": (0x7FC00000, 0x7FC00001),
    "a NaN's sign": (0x7FC00000, 0xFFC00000),
    "a signalling NaN": (0x7F800001, 0x7FC00001),
    "a zero's sign": (0x00000000, 0x80000000),
}


def nan_bits(bench: Bench) -> Outcome:
    """Digests are of integer views: these pairs differ, and each value equals itself."""
    for device in bench.devices:
        for name, (one, other) in _PAIRS.items():
            digests = [_digest_of(word, device) for word in (one, other, one)]
            if digests[0] == digests[1] or digests[0] != digests[2]:
                return Outcome("FAIL", f"{name} is not told apart on {device}")
    return Outcome("PASS", f"told apart: {', '.join(_PAIRS)}")


def _digest_of(word: int, device: torch.device) -> tuple[int, ...]:
    words = np.full(1001, 0x3F800000, dtype=np.uint32)
    words[500] = word
    return tuple(digest_tensor(torch.from_numpy(words.view(np.float32)).to(device)))


def question(bench: Bench) -> Outcome:
    """One bit of the probe's question: known to be wrong without any reference."""
    for device in bench.devices:
        probe = Probe(device)
        flip_bit(probe.numbers, 777, 0)
        if "question" not in answer_of(probe).wrong(probe.known):
            return Outcome("FAIL", f"the probe on {device} answered a changed question as before")
    return Outcome("PASS", "the probe saw one bit of its question")


class _OneBit(TorchDispatchMode):  # type: ignore[no-untyped-call] # torch has no types here
    """Flips one bit of the sixth product of matrices."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call] # as above
        self._left = 6

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> torch.Tensor:
        result: torch.Tensor = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in ("mm", "bmm"):
            self._left -= 1
            if not self._left:
                flip_bit(result, 7, 15)
        return result


def product(bench: Bench) -> Outcome:
    """One bit of one product inside of the probe: seen, and called intermittent."""
    for device in bench.devices:
        probe = Probe(device)
        watch = AnswerWatch(str(device), probe.known)
        for _ in range(2):
            watch.take(0, answer_of(probe))
        with _OneBit():
            odd = answer_of(probe)
        alerts, again = watch.take(1, odd)
        for _ in range(again):
            alerts += watch.take(1, answer_of(probe))[0]
        if [alert.detail["course"] for alert in alerts] != ["intermittent"]:
            return Outcome("FAIL", f"one wrong product on {device} raised {len(alerts)} alerts")
    return Outcome("PASS", "known_answer named it intermittent, by two repeats")


def answer_of(probe: Probe) -> Answer:
    """A probe's answer; waits for the device."""
    pending = probe.ask()
    return Answer(pending.rows.cpu().numpy(), pending.numbers.cpu().numpy())


TRIALS = (
    Trial(_SECTION, "bits of NaN and of zero", nan_bits),
    Trial(_SECTION, "a bit of the probe's question", question),
    Trial(_SECTION, "a bit of a product in the probe", product),
)
