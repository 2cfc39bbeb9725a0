"""In which order streams wait for each other; on a device only a device can show the rest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from sdc_guard.digest import digest_rows
from sdc_guard.signals import second_stream
from sdc_guard.signals.second_stream import SecondStream, on_one_device

TENSORS = {("param", 0): torch.randn(5), ("exp_avg", 3): torch.randn(2, 3)}


class Stream:
    """Writes down what it waits for."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name} waits for {event}")


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is done on streams, in its order; the tensors are on the CPU."""
    done: list[str] = []
    current = [Stream("main", done)]
    side = Stream("side", done)

    @contextlib.contextmanager
    def on(stream: Stream) -> Iterator[None]:
        current.append(stream)
        yield
        current.pop()

    def event_behind(stream: Stream) -> str:
        done.append(f"event in {stream.name}")
        return f"that of {stream.name}"

    def digests(*args: Any, **options: Any) -> torch.Tensor:
        done.append(f"digests on {current[-1].name}")
        return digest_rows(*args, **options)

    def record(tensor: torch.Tensor, stream: Stream) -> None:
        done.append(f"kept for {stream.name}")

    monkeypatch.setattr(second_stream, "_stream_on", lambda device: side)
    monkeypatch.setattr(second_stream, "_event_behind", event_behind)
    monkeypatch.setattr(second_stream, "digest_rows", digests)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: current[-1])
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.Tensor, "record_stream", record)
    return done


BEGUN = [
    "event in main", "side waits for that of main", "digests on side", "kept for main",
    "kept for side", "kept for side", "event in side",
]  # fmt: skip
ENDED = ["main waits for that of side"]


def test_the_training_waits_on_the_device_before_it_may_write(log: list[str]) -> None:
    stream = SecondStream()
    assert stream.end(TENSORS) is None
    for _ in range(2):
        stream.begin(TENSORS, [7, 0])
        assert log == BEGUN
        found = stream.end(TENSORS)
        assert log == BEGUN + ENDED
        assert found is not None
        assert found.keys == tuple(TENSORS)
        assert torch.equal(found.rows, digest_rows(list(TENSORS.values()), offsets=[7, 0]))
        assert stream.end(TENSORS) is None
        log.clear()


@pytest.mark.parametrize("how", ["written", "moved", "gone"])
def test_what_the_script_wrote_to_meanwhile_is_not_compared(log: list[str], how: str) -> None:
    tensors = {key: tensor.clone() for key, tensor in TENSORS.items()}
    stream = SecondStream()
    stream.begin(tensors, [0, 0])
    if how == "written":
        tensors["param", 0].add_(1)
    elif how == "moved":
        tensors["param", 0].data = tensors["param", 0].clone()
    else:
        del tensors["param", 0]
    assert stream.end(tensors) is None
    assert log[-1:] == ENDED


def test_what_is_begun_again_or_dropped_is_waited_for_all_the_same(log: list[str]) -> None:
    stream = SecondStream()
    stream.begin(TENSORS, [0, 0])
    stream.begin(TENSORS, [0, 0])
    stream.drop()
    assert log == BEGUN + ENDED + BEGUN + ENDED


def test_only_one_device() -> None:
    assert not on_one_device(TENSORS.values())
    assert not on_one_device([])
