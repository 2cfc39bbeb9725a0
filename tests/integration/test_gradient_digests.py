"""Digests of gradients: of which bits they are, and what a replay says by them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from small_training import Fault, train
from test_budget import last_checkpoint_before, verified
from torch import nn
from training_parts import attach, batches, loss_of, net, rows, sound

from sdc_guard.digest import Digest, digest_tensor

_GRADIENTS = """
    SELECT step, phase, name, h, s1, s2 FROM digests JOIN layer_names USING (layer)
    WHERE kind = 'grad' ORDER BY step, layer
"""


def digests_of(model: nn.Module) -> dict[str, Digest]:
    return {
        name: digest_tensor(parameter.grad)
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def recorded(run: Path) -> list[dict[str, Digest]]:
    steps: dict[int, dict[str, Digest]] = {}
    for step, phase, name, *sums in rows(run, _GRADIENTS):
        assert phase == "before"
        steps.setdefault(step, {})[name] = Digest(*(value % 2**64 for value in sums))
    return [steps[step] for step in sorted(steps)]


@pytest.mark.parametrize("budget", [None, 0.2])
def test_they_are_of_the_accumulated_gradient_before_clipping(
    budget: float | None, tmp_path: Path
) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    guard = attach(model, optimizer, tmp_path, digest_gradients=True, digest_budget=budget)
    expected = []
    for pair in zip(batches(4), batches(4, seed=2), strict=True):
        for batch in pair:
            loss_of(model, batch).backward()
        if len(expected) == 2:
            model[0].bias.grad = None  # a layer without a gradient at this step
        expected.append(digests_of(model))
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    sound(guard)
    assert guard.health.alerts == {}
    expected[2]["0.bias"] = recorded(tmp_path)[2]["0.bias"]  # as its backward left it
    assert recorded(tmp_path) == expected


def test_without_a_backward_of_its_own_a_step_has_those_it_is_given(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    guard = attach(model, optimizer, tmp_path, digest_gradients=True)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    expected = [digests_of(model)]
    optimizer.step()
    guard.close()
    sound(guard)
    assert recorded(tmp_path) == expected


GRADIENT = Fault("computed gradient", 14, "1.weight", bit=0)


def test_a_wrong_gradient_is_told_with_its_element_and_bit(tmp_path: Path) -> None:
    run = train(tmp_path / "run", 20, GRADIENT, digest_gradients=True)
    found = verified(run, last_checkpoint_before(GRADIENT), digest_gradients=True)
    assert (found.first_corrupt, found.exact, found.proven) == (14, True, True)
    assert (found.kind, found.watched) == ("gradient", 1)
    (tensor,) = found.tensors
    assert (tensor.kind, tensor.name) == ("grad", "1.weight")
    assert tensor.change is not None
    assert (tensor.change.index, tensor.change.bits) == (3, [0])


@pytest.mark.parametrize(
    ("site", "kind", "text"),
    [
        ("param", "state at rest", "param 1.weight differed before the update"),
        ("gradient", "optimizer update", "at the end of the backward were equal bit for bit"),
        ("update", "optimizer update", "at the end of the backward were equal bit for bit"),
    ],
)
def test_what_is_no_wrong_gradient_is_not_called_one(
    site: str, kind: str, text: str, tmp_path: Path
) -> None:
    fault = replace(GRADIENT, site=site, bit=20)  # the lowest may round away in the update
    run = train(tmp_path / "run", 20, fault, digest_gradients=True)
    found = verified(run, last_checkpoint_before(fault), digest_gradients=True)
    assert (found.first_corrupt, found.kind, found.exact) == (14, kind, True)
    assert text in " ".join(found.evidence)
    assert found.tensors[0].name == "1.weight"


@pytest.mark.parametrize(
    ("ours", "theirs"), [({"digest_gradients": True}, {}), ({}, {"digest_gradients": True})]
)
def test_a_trace_without_them_is_compared_by_the_rest(
    ours: dict[str, Any], theirs: dict[str, Any], tmp_path: Path
) -> None:
    run = train(tmp_path / "run", 10, **ours)
    found = verified(run, 5, 10, **theirs)
    assert (found.last_clean, found.first_corrupt, found.exact, found.watched) == (
        10,
        None,
        True,
        1,
    )
