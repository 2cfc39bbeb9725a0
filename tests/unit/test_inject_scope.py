"""What can be hit and what cannot, said by name; and by what an open target is drawn."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sdc_guard import Guard
from sdc_guard.digest.reference import words
from sdc_guard.errors import InjectionError
from sdc_guard.inject.fault import Fault, Site
from sdc_guard.inject.injector import Injector
from sdc_guard.inject.journal import read_events
from sdc_guard.store.reader import RunReader


def injector_of(model: nn.Module, **options: Any) -> Injector:
    parameters = list(model.parameters()) or [nn.Parameter(torch.ones(1))]
    return Injector(model, torch.optim.AdamW(parameters), seed=0, **options)


def quantised() -> nn.Module:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its own function deprecated
        return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)


def test_packed_weights_are_refused_by_name_and_outputs_are_not() -> None:
    model = quantised()
    for site in ("weight", "buffer", "gradient", "exp_avg"):
        with pytest.raises(InjectionError, match="to inject into") as caught:
            injector_of(model).add(Fault(site, 0))
        assert "0: Linear keeps its weights packed for int8 kernels" in caught.value.what
        assert "activation" in caught.value.next_step
    with pytest.raises(InjectionError, match="weight of 0 cannot be injected: Linear keeps"):
        injector_of(model).add(Fault("weight", 0, "0"))
    with injector_of(model) as injector:
        injector.add(Fault("activation", 0))
        model(torch.ones(2, 4))
    assert [record.tensor for record in injector.records] == ["0"]


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(5, 4)
        self.norm = nn.LayerNorm(4)
        self.mixed = nn.MultiheadAttention(4, 2, batch_first=True)
        self.relu, self.dropout = nn.ReLU(), nn.Dropout(0.1)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.tokens(tokens))
        found: torch.Tensor = self.dropout(self.relu(self.mixed(x, x, x)[0]))
        return found


def test_all_is_every_module_that_keeps_tensors_and_the_others_are_listed() -> None:
    scope = injector_of(Layers()).scope("activation")
    assert list(scope.sizes) == ["tokens", "norm", "mixed"]
    assert set(scope.skipped) == {"", "relu", "dropout", "mixed.out_proj"}
    assert "does not call it" in scope.skipped["mixed.out_proj"]
    # by its name what keeps no tensor can be hit all the same
    with injector_of(model := Layers()) as injector:
        injector.add(Fault("activation", 0, "relu", change="zero"))
        model(torch.ones(1, 2, dtype=torch.int64))
    assert [record.tensor for record in injector.records] == ["relu"]


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault("weight", 0, "tokens.weight", (5, 0)), r"\[5, 0\] is outside tokens.weight of sha"),
        (Fault("weight", 0, "tokens.weight", (0,)), r"outside tokens.weight of shape \[5, 4\]"),
        (Fault("weight", 0, "tokens.weight", 20), r"index 20 is outside .* of shape \[5, 4\]"),
        (Fault("weight", 0, "token.*"), "no parameter named 'token"),
        (Fault("activation", 0, "mixer"), "no module named 'mixer'.*one of tokens, norm, mixed"),
        (Fault("activation", 0, "mixed.out_proj"), "activation of mixed.out_proj cannot be inje"),
        (Fault("collective", 0), "collective needs a model in DistributedDataParallel"),
        (Fault("file", 0), "a checkpoint's file is not part of the training"),
        (Fault("weight", 0, change="set"), "set needs a value"),
        (Fault("weight", 0, bit=1, bits=(2,)), "both bit and bits"),
        (Fault("weight", 0, effect="memory"), 'effect "memory" of weight'),
        (Fault("weight", 5, until=4, recurrence="persistent"), "until 4 is before step 5"),
        (Fault("weight", 0, probability=0.5), 'a fault that is "once"'),
        (Fault("weight", 0, recurrence="intermittent", probability=1.5), "no probability 1.5"),
    ],
    ids=str,
)
def test_what_cannot_be_meant_is_one_line(fault: Fault, message: str) -> None:
    with pytest.raises(InjectionError, match=message) as caught:
        injector_of(Layers()).add(fault)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv1d(2, 3, 1), (1, 2, 4)),
        (nn.Conv2d(2, 3, 1), (1, 2, 4, 4)),
        (nn.Conv3d(2, 3, 1), (1, 2, 2, 2, 2)),
        (nn.Linear(4, 3), (2, 4)),
        (nn.LSTM(4, 3), (2, 1, 4)),
    ],
    ids=lambda x: type(x).__name__,
)
def test_outputs_of_any_shape_by_flat_index_and_by_place(
    layer: nn.Module, shape: tuple[int, ...]
) -> None:
    x = torch.randn(shape)
    out = layer(x)
    out = out if isinstance(out, torch.Tensor) else out[0]
    last = tuple(size - 1 for size in out.shape)
    model = nn.Sequential(layer)
    with injector_of(model) as injector:
        injector.add(Fault("activation", 0, "0", last, bit=3))
        injector.add(Fault("activation", 0, "0", out.numel(), bit=3))
        model(x)
    (record,) = injector.records
    assert record.touched[0].index == out.numel() - 1
    (missed,) = injector.missed
    assert f"of shape {list(out.shape)}" in missed.reason


def test_one_fault_is_one_element_of_a_huge_tensor_or_of_any_layer(tmp_path: Path) -> None:
    class Sizes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.huge = nn.Parameter(torch.ones(10_000))
            self.tiny = nn.ParameterList(nn.Parameter(torch.ones(2)) for _ in range(9))

        def forward(self) -> None:
            return None

    hit: dict[str, Counter[str]] = {}
    for sampling in ("element", "layer"):
        hit[sampling] = Counter()
        for seed in range(60):
            model = Sizes()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            with Injector(model, optimizer, seed=seed, run=tmp_path / f"{sampling}{seed}") as i:
                i.add(Fault("weight", 0, sampling=sampling))  # type: ignore[arg-type] # because mypy sees a str
                model()
            (record,) = i.records
            hit[sampling][record.tensor] += 1
            changed = {
                (name, place)
                for name, p in model.named_parameters()
                for place in (words(p.detach()) != words(torch.ones(1)))
                .nonzero()
                .flatten()
                .tolist()
            }
            assert changed == {(record.tensor, record.touched[0].index)}
        (planned, *_) = read_events(tmp_path / f"{sampling}0")
        assert (planned["event"], planned["sampling"]) == ("planned", sampling)
    assert hit["element"]["huge"] >= 57  # 0.998 of the elements are there
    assert len(hit["layer"]) >= 8  # each of ten as often: P(two are missing of 60) below 1 %


def test_one_plan_with_every_kind_of_target(tmp_path: Path) -> None:
    sites: list[Site] = [
        "weight", "exp_avg", "exp_avg_sq", "step", "gradient", "reduced_gradient", "activation",
        "output_gradient", "batch",
    ]  # fmt: skip
    model = Layers()
    optimizer = torch.optim.AdamW(model.parameters())
    with Injector(model, optimizer, seed=0, run=tmp_path) as injector:
        for site in sites:
            injector.add(Fault(site, 1))
        for _ in range(2):
            model(torch.ones(1, 2, dtype=torch.int64)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
    assert Counter(record.site for record in injector.records) == Counter(sites)


def test_losses_and_what_is_computed_from_outputs_is_not_hit() -> None:
    """The scope is the model: a metric beside it gets what the model gave."""
    model = nn.Sequential(nn.Linear(4, 2), nn.Softmax(-1))
    metric = nn.Linear(2, 1)
    before = [p.detach().clone() for p in metric.parameters()]
    with injector_of(model) as injector:
        for step in range(30):
            injector.add(Fault("activation", step)).add(Fault("weight", step))
        for _ in range(30):
            out = model(torch.ones(3, 4))
            assert torch.equal(metric(out), nn.functional.linear(out, *metric.parameters()))
            injector.step_ends()
    assert {record.tensor for record in injector.records} == {"0", "0.weight", "0.bias"}
    assert all(torch.equal(a, b) for a, b in zip(before, metric.parameters(), strict=True))


def test_a_guard_made_before_sees_what_is_injected(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2), nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters())
    guard = Guard(
        model, optimizer, run=tmp_path, digest_budget=None, digest_buffers=True, policy="record",
        digest_gradients=True,
    )  # fmt: skip
    with Injector(model, optimizer, seed=0, run=tmp_path, count=lambda: guard.step) as injector:
        injector.add(Fault("weight", 2, "0.weight", 5, bit=3))
        injector.add(Fault("exp_avg", 4, "2.bias", 1, bit=4))
        injector.add(Fault("buffer", 6, "3.running_mean", 0, bit=5))
        injector.add(Fault("gradient", 8, "0.bias", 2, change="set", value=float("inf")))
        for _ in range(10):
            loss = model(torch.randn(8, 4)).sum()
            loss.backward()
            guard.observe(loss)
            optimizer.step()
            optimizer.zero_grad()
    guard.close()
    assert [record.step for record in injector.records] == [2, 4, 6, 8]
    with RunReader(tmp_path) as reader:
        found = reader.rows(
            "SELECT step, detector, coalesce(name, '') FROM alerts LEFT JOIN layer_names USING"
            " (layer) WHERE severity = 'proven' OR detector LIKE 'nonfinite%' ORDER BY step"
        )
    assert (2, "carried_digest", "0.weight") in found
    assert (4, "carried_digest", "2.bias") in found
    assert any(row[0] == 6 for row in found)
    assert any(row == (8, "nonfinite_gradient", "0.bias") for row in found)
