"""The benchmark of faults at rest, in short: each is named, and nothing else is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import at_rest_faults as at_rest

COUNT = 30


@pytest.mark.parametrize(
    ("overlapped", "place"), [(False, at_rest.FORWARD), (True, at_rest.BETWEEN)]
)
def test_every_fault_is_named_in_its_step_with_tensor_element_and_bit(
    overlapped: bool, place: str, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sdc_guard.signals.beside.core_is_free", lambda: True)
    done = at_rest.faults(tmp_path, seed, COUNT, place, overlap_digests=overlapped)
    assert done.missed == []
    assert (done.found, done.faults, done.others) == (COUNT, COUNT, 0)
    assert (done.watched is not None) == overlapped


@pytest.mark.parametrize("overlapped", [False, True])
def test_without_a_fault_nothing_is_said(overlapped: bool, tmp_path: Path, seed: int) -> None:
    assert at_rest.clean(tmp_path, seed, 30, overlap_digests=overlapped) == []
