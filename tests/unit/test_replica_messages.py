"""What is told of replicas: between ranks as bytes, and to people as alerts."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from sdc_guard.checks.replicas.messages import (
    PASSED,
    Record,
    folds_of,
    read_folds,
    read_report,
    read_rows,
    report_text,
    rows_of,
)
from sdc_guard.checks.replicas.units import Units, unit_id
from sdc_guard.detect.replica_alerts import Report, replica_alert
from sdc_guard.detect.replica_values import Compared
from sdc_guard.detect.replicas import Part, Unit
from sdc_guard.signals.layers import model_layers
from sdc_guard.signals.state import CarriedState

NAMES = {0: "first", 1: "second"}
PART = Part("param", 0, 30, "float32", 100)
ONE = Compared("corruption", 1, 30, 0.75, 7, 0x3F800000, 0x3D800000)
SOME = Compared("drift", 15, 30, 1.4e-5, 3, 1, 2)
INT64 = st.integers(-(2**63), 2**63 - 1)


def record_of(values: list[list[int]]) -> Record:
    """A unit for each list, with three numbers for each of its parts."""
    units = []
    for number, own in enumerate(values):
        parts = tuple(Part("param", n, 4, "float32", None) for n in range(len(own)))
        rows = np.array(own, dtype=np.int64)[:, None].repeat(3, axis=1)
        units.append((Unit(unit_id(str(number)), "assumed", parts), rows))
    return Record(3, tuple(units))


@given(st.lists(st.lists(INT64, min_size=1, max_size=5), max_size=4))
def test_what_is_told_is_what_is_read(values: list[list[int]]) -> None:
    record = record_of(values)
    folds = read_folds(folds_of(record))
    assert list(folds) == [unit.id for unit, _ in record.units]
    assert len(folds_of(record)) == 17 * len(values)
    read = read_rows(rows_of(record, set(folds)) or b"") if values else []
    assert [unit for unit, _ in read] == [unit for unit, _ in record.units]
    for (_, found), (_, rows) in zip(read, record.units, strict=True):
        np.testing.assert_array_equal(found, rows)
    assert rows_of(record, {"another"}) is None


@given(own=st.lists(INT64, min_size=2, max_size=5), place=st.integers(0, 4), other=INT64)
def test_a_unit_has_another_number_if_any_digest_differs(
    own: list[int], place: int, other: int
) -> None:
    changed = list(own)
    changed[place % len(own)] = other
    ((_, one),) = read_folds(folds_of(record_of([own]))).values()
    ((_, two),) = read_folds(folds_of(record_of([changed]))).values()
    assert (one == two) == (own == changed)


def test_a_step_that_is_passed_is_no_unit() -> None:
    assert folds_of(Record(3, (), passed=True)) == PASSED
    assert read_folds(PASSED) == {}
    assert read_folds(b"") == {}


def report(**more: Any) -> Report:
    known: dict[str, Any] = {
        "step": 100, "state": "out", "how": "declared", "ranks": (0, 1, 2), "odd": (2,),
        "parts": (PART,), "candidate": None, "values": None, "pair": (0, 2),
    }  # fmt: skip
    return Report(**(known | more))


@pytest.mark.parametrize("one", [report(values=ONE), report(values=SOME, odd=(), candidate=3)])
def test_a_report_survives_its_way(one: Report) -> None:
    assert read_report(json.loads(json.dumps(report_text(one)))) == one


def test_a_majority_names_rank_element_and_bits() -> None:
    alert = replica_alert(report(values=ONE), NAMES)
    assert (alert.step, alert.layer, alert.layer_name, alert.severity) == (
        100,
        0,
        "first",
        "proven",
    )
    assert alert.detail["text"] == (
        "param of first differs on rank 2 from ranks 0, 1 (element 107, bits [25]: 0x3f800000 on "
        "rank 0, 0x3d800000 on rank 2)"
    )
    assert alert.detail["culprit"] == 2
    assert alert.detail["index"] == 107
    assert (alert.detail["before"], alert.detail["after"]) == ("0x3f800000", "0x3d800000")
    assert report(values=ONE).reporter == 2


def test_two_ranks_and_ties_blame_nobody() -> None:
    pair = report(ranks=(0, 1), odd=(), pair=(0, 1), values=ONE)
    tie = report(ranks=(0, 1, 2, 3), odd=(), pair=(0, 2), values=ONE)
    for one, said in (
        (pair, "rank 0 and rank 1 differ in param of first, which is right is not known"),
        (tie, "ranks 0, 1, 2, 3 differ in param of first, and no majority of them agrees"),
    ):
        alert = replica_alert(one, NAMES)
        assert alert.detail["text"].startswith(f"undetermined: {said}")
        assert alert.detail["culprit"] is None
        assert alert.detail["verdict"] == "undetermined"
        assert "before" not in alert.detail
        assert set(alert.detail["values"].values()) == {"0x3f800000", "0x3d800000"}
        assert one.reporter == 0


@pytest.mark.parametrize(
    ("one", "sort"),
    [
        (report(values=SOME), "drift"),
        (report(state="never", odd=()), "never in sync"),
        (report(state="apart", odd=()), "no longer in sync"),
    ],
)
def test_what_software_can_explain_accuses_no_rank(one: Report, sort: str) -> None:
    alert = replica_alert(one, NAMES)
    assert alert.severity == "suspect"
    assert alert.detail["class"] == sort
    assert alert.detail["culprit"] is None
    assert alert.detail["verdict"] == "data or software"


def test_without_values_nothing_is_classified_and_an_element_is_a_candidate() -> None:
    alert = replica_alert(report(candidate=107, parts=(PART,) * 3), NAMES)
    assert alert.detail["class"] == "unclassified"
    assert alert.detail["candidate"] == 107
    assert "index" not in alert.detail
    assert alert.detail["count"] == 3
    assert "param of first and 2 more differ on rank 2" in alert.detail["text"]
    assert "element 107, if it is one" in alert.detail["text"]


def test_layers_and_ranks_without_end_are_a_short_text() -> None:
    many = report(
        parts=tuple(Part("param", n, 1, "float32", 0) for n in range(5000)),
        ranks=tuple(range(1024)),
        odd=(1000,),
    )
    alert = replica_alert(many, {})
    assert len(alert.detail["text"]) < 200
    assert len(alert.detail["tensors"]) == 20


def state_of(model: nn.Module) -> CarriedState:
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    return CarriedState(model_layers(model), [optimizer], set())


def units_of(model: nn.Module) -> dict[str, list[str]]:
    state = state_of(model)
    return {
        unit.id: [p.kind for p in unit.parts]
        for unit, _ in Units(model, state, state.tensors()).all
    }


def test_equal_models_have_equal_units_whatever_is_in_them() -> None:
    one, other = units_of(nn.Linear(3, 2)), units_of(nn.Linear(3, 2))
    assert one == other
    assert sorted(one.values()) == [["exp_avg"] * 2, ["exp_avg_sq"] * 2, ["param"] * 2]


@pytest.mark.parametrize(
    "other", [nn.Linear(3, 4), nn.Linear(3, 2, bias=False), nn.Linear(3, 2).double()]
)
def test_other_shapes_layers_and_dtypes_have_other_units(other: nn.Module) -> None:
    other.forward = lambda x, own=other.forward: own(x.to(other.weight.dtype))  # type: ignore[union-attr, assignment]
    assert not units_of(nn.Linear(3, 2)).keys() & units_of(other).keys()
