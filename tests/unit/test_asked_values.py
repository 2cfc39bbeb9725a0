"""Tensors of one step, asked for by another thread."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch

from sdc_guard.checks.replicas import asked_values
from sdc_guard.checks.replicas.asked_values import AskedValues, patience_until

KEY = ("param", 0)


def asked(
    values: AskedValues, step: int, index: int | None = None, patience: Any = lambda: True
) -> Future[list[bytes]]:
    pool = ThreadPoolExecutor(1)
    found = pool.submit(values.get, step, [(KEY, index)], patience)
    end = time.monotonic() + 20
    while values._request is None:
        assert time.monotonic() < end
        time.sleep(0.001)
    return found


def test_the_tensor_is_that_of_the_step_and_stays_it() -> None:
    values, tensor = AskedValues(), torch.arange(4.0)
    found = asked(values, 7)
    left = {}
    for step in range(5, 9):
        tensor.add_(1)
        left[step] = tensor.numpy().tobytes()
        values.step_ended(step, lambda key: tensor if key == KEY else None)
        tensor.add_(1)  # the next step goes on while the copy is read
    assert found.result(20) == [left[7]]
    assert values.step == 8


def test_a_step_that_is_over_and_a_tensor_that_is_not_here_give_nothing() -> None:
    values = AskedValues()
    late = asked(values, 3)
    values.step_ended(4, lambda _: torch.ones(2))
    assert late.result(20) == [b""]
    absent = asked(values, 5)
    values.step_ended(5, lambda _: None)
    assert absent.result(20) == [b""]


def test_of_a_large_tensor_only_one_element_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asked_values, "MOST_BYTES", 8)
    values, tensor = AskedValues(), torch.arange(4.0)
    for index, expected in ((2, tensor[2:3].numpy().tobytes()), (None, b"")):
        found = asked(values, 1, index)
        values.step_ended(1, lambda _: tensor)
        assert found.result(20) == [expected]


def test_an_error_in_the_training_thread_leaves_nobody_waiting() -> None:
    def broken(_: object) -> Any:
        raise RuntimeError("no tensor")

    values = AskedValues()
    found = asked(values, 1)
    with pytest.raises(RuntimeError):
        values.step_ended(1, broken)
    assert found.result(20) == [b""]


def test_patience_ends_at_the_earlier_of_two_times() -> None:
    now, over = time.monotonic(), threading.Event()
    assert patience_until(now + 60, lambda: None)()
    assert not patience_until(now - 1, lambda: None)()
    assert not patience_until(now + 60, lambda: now - 1)()
    values = AskedValues()
    found = asked(values, 1, None, lambda: not over.is_set())
    over.set()
    assert found.result(20) == [b""]
