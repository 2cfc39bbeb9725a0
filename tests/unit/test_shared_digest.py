"""Digests that two threads take together are those that one takes."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from sdc_guard.digest import Span, digest_rows
from sdc_guard.signals import shared_digest
from sdc_guard.signals.shared_digest import SharedDigest


def some_tensors(seed: int) -> tuple[list[torch.Tensor], list[int | Span]]:
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(0, 700_000, (9,), generator=generator).tolist()
    tensors = [torch.randn(size, generator=generator) for size in sizes]
    tensors += [torch.randn(64, 32, generator=generator).T, torch.arange(9), torch.empty(0)]
    offsets = [int(torch.randint(0, 99, (), generator=generator)) for _ in tensors]
    return tensors, [*offsets[:-3], Span(3, (64, 32), (64, 1)), *offsets[-2:]]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("piece", [1, 1 << 21])
def test_the_rows_are_those_of_one_thread(
    seed: int, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_digest, "_PIECE", piece)
    tensors, offsets = some_tensors(seed)
    expected = digest_rows(tensors, offsets=offsets).numpy()
    for first in (None, [], [3], range(0, 12, 2)):
        job = SharedDigest(tensors, offsets, first).submit(time.monotonic())
        job.finish_first()
        chosen = list(range(12) if first is None else first)
        np.testing.assert_array_equal(job.rows[chosen], expected[chosen])
        np.testing.assert_array_equal(job.finish(), expected)
        assert job.done
        assert (job.read[:, 1] >= job.read[:, 0]).all()
        assert job.read.min() > 0


def test_who_needs_it_does_not_wait_for_the_time_to_begin() -> None:
    tensors, offsets = some_tensors(5)
    job = SharedDigest(tensors, offsets).submit(time.monotonic() + 1e6)
    np.testing.assert_array_equal(job.finish(), digest_rows(tensors, offsets=offsets))
    later = SharedDigest(tensors, offsets).submit(time.monotonic())  # the thread is not stuck
    while not later.done:
        time.sleep(0.001)


def test_the_other_thread_does_it_all_by_itself() -> None:
    tensors, offsets = some_tensors(6)
    job = SharedDigest(tensors, offsets).submit(time.monotonic() + 0.01)
    while not job.done:
        time.sleep(0.001)
    np.testing.assert_array_equal(job.rows, digest_rows(tensors, offsets=offsets))


@pytest.mark.parametrize("end", [SharedDigest.cancel, SharedDigest.finish])
def test_nothing_is_held_or_read_after_its_end(end: object) -> None:
    tensors = [torch.ones(1 << 20) for _ in range(8)]
    job = SharedDigest(tensors, [0] * 8).submit(time.monotonic())
    end(job)  # type: ignore[operator] # because one of two methods
    assert job.done
    held = [weakref.ref(tensor.untyped_storage()) for tensor in tensors]
    copies = [tensor.clone() for tensor in tensors]
    for tensor in tensors:
        tensor.fill_(2)
    del tensors, tensor
    gc.collect()
    assert [reference() for reference in held] == [None] * 8
    assert all((copy == 1).all() for copy in copies)


def test_a_parameter_that_is_given_other_memory_meanwhile_is_read_where_it_was() -> None:
    parameters = [torch.nn.Parameter(torch.full((1 << 20,), 3.0)) for _ in range(8)]
    expected = digest_rows([p.detach() for p in parameters])
    job = SharedDigest(parameters, [0] * 8).submit(time.monotonic())
    for parameter in parameters:
        parameter.data = torch.zeros(1)
    np.testing.assert_array_equal(job.finish(), expected)


def test_what_goes_wrong_is_told_to_who_waits_and_the_next_is_done() -> None:
    job = SharedDigest([torch.ones(4, device="meta"), torch.ones(4)], [0, 0])
    with pytest.raises(Exception, match=r"no memory|meta"):
        job.submit(time.monotonic()).finish()
    assert job.done
    tensors, offsets = some_tensors(7)
    job = SharedDigest(tensors, offsets).submit(time.monotonic())
    np.testing.assert_array_equal(job.finish(), digest_rows(tensors, offsets=offsets))


def child(found: multiprocessing.SimpleQueue[bool]) -> None:
    job = SharedDigest([torch.ones(10)], [0]).submit(time.monotonic())
    end = time.monotonic() + 20
    while not job.done and time.monotonic() < end:
        time.sleep(0.001)
    found.put(job.done)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_has_a_thread_of_its_own() -> None:
    SharedDigest([torch.ones(4)], [0]).submit(time.monotonic()).finish()
    context = multiprocessing.get_context("fork")
    found: multiprocessing.SimpleQueue[bool] = context.SimpleQueue()
    process = context.Process(target=child, args=(found,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert found.get()


def test_what_is_under_way_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def slowly(tensors: list[torch.Tensor], **options: Any) -> torch.Tensor:
        begun.set()
        time.sleep(0.1)
        return digest_rows(tensors, **options)

    monkeypatch.setattr(shared_digest, "digest_rows", slowly)
    job = SharedDigest([torch.ones(4)], [0]).submit(time.monotonic())
    begun.wait()
    job.cancel()
    assert job.done
    assert job.read[0, 1] > 0
