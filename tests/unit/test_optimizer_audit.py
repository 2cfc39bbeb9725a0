"""The audit of an optimizer: turns, past, coverage, and that it waits for no device."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from optimizer_runs import Net, Vector, Watch, apply, train
from torch import distributed, nn
from torch._subclasses import FakeTensorMode
from torch.distributed.fsdp import fully_shard
from torch.optim import SGD, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam
from torch.utils._python_dispatch import TorchDispatchMode

from sdc_guard.detect.adam_limits import EARLIER
from sdc_guard.detect.invariants import COLUMNS
from sdc_guard.signals.adam_coverage import covered
from sdc_guard.signals.adam_history import AdamHistory
from sdc_guard.signals.layers import model_layers
from sdc_guard.signals.optimizer_audit import OptimizerAudit
from sdc_guard.signals.turns import Turns

LIMIT = 0.1**2 / (0.001 * (1 - 0.81 / 0.999))


@given(
    sizes=st.lists(st.integers(0, 50), max_size=12),
    every=st.integers(1, 40),
    elements=st.integers(1, 60),
    start=st.integers(-5, 1000),
)
def test_every_element_has_one_turn_in_a_round(
    sizes: list[int], every: int, elements: int, start: int
) -> None:
    turns = Turns(enumerate(sizes), every=every, elements=elements)
    due = [turns.due(step) for step in range(start, start + every)]
    looked_at = [
        (piece.layer, index)
        for pieces in due
        for piece in pieces
        for index in range(piece.start, piece.stop)
    ]
    assert sorted(looked_at) == [
        (layer, i) for layer, size in enumerate(sizes) for i in range(size)
    ]
    assert all(p.stop - p.start <= elements for pieces in due for p in pieces)
    # spread evenly, and the same in every round and in a replay
    assert max(map(len, due)) - min(map(len, due)) <= 1
    assert due == [turns.due(step + 3 * every) for step in range(start, start + every)]


def test_slices_of_a_round_cover_the_model() -> None:
    model = Net()
    optimizer = AdamW(model.parameters())
    watch = Watch(model, optimizer, every=7, elements=100)
    train(model, optimizer, 7, seed=0)
    assert watch.looked == sum(-(-p.numel() // 100) for p in model.parameters())


@pytest.mark.parametrize(
    ("kind", "options", "moments", "step", "reason"),
    [
        (Adam, {}, True, True, ""),
        (AdamW, {"amsgrad": True, "fused": True}, True, True, ""),
        (AdamW, {"betas": (torch.tensor(0.9), torch.tensor(0.99))}, True, True, ""),
        (AdamW, {"lr": torch.tensor(0.1)}, True, True, ""),
        (NAdam, {}, True, False, "a step of NAdam"),
        (RAdam, {}, True, False, "a step of RAdam"),
        (Adam, {"eps": 0.0}, True, False, "eps 0 is too small for float32"),
        (Adam, {"betas": (0.99, 0.9)}, False, False, "betas 0.99 and 0.9 bound nothing"),
        (Adamax, {}, False, False, "Adamax"),
        (SGD, {"momentum": 0.9}, False, False, "SGD"),
        (torch.optim.LBFGS, {}, False, False, "LBFGS"),
        (torch.optim.Adafactor, {}, False, False, "Adafactor"),
        (torch.optim.SparseAdam, {}, False, False, "SparseAdam"),
        (type("Mine", (AdamW,), {}), {}, False, False, "Mine"),
    ],
)
def test_coverage(
    kind: type[Optimizer], options: dict[str, Any], moments: bool, step: bool, reason: str
) -> None:
    model = Vector(1.0)
    optimizer = kind(model.parameters(), **options)
    coverage = covered(optimizer, model.w)
    assert (coverage.moments, coverage.step) == (moments, step)
    assert reason in coverage.reason
    assert bool(reason) == bool(coverage.reason)


def test_coverage_of_dtypes_and_strangers() -> None:
    half = Vector(1.0, dtype=torch.float16)
    assert "float16" in covered(Adam(half.parameters()), half.w).reason
    pair = Vector(1.0, dtype=torch.complex64)
    assert covered(Adam(pair.parameters()), pair.w).step
    assert not covered(Adam(half.parameters()), pair.w).moments


@pytest.mark.filterwarnings("ignore:.*Muon:UserWarning")
def test_muon_is_not_covered() -> None:
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    weight = nn.Parameter(torch.ones(2, 2))
    assert "Muon" in covered(torch.optim.Muon([weight]), weight).reason


def test_what_is_not_covered_is_told_once_and_costs_no_check() -> None:
    model = Net()
    optimizer = SGD(model.parameters(), lr=0.1)
    watch = Watch(model, optimizer)
    train(model, optimizer, 3, seed=0)
    assert watch.looked == 0
    (note,) = watch.audit.take_notes()
    assert "SGD" in note
    assert watch.audit.take_notes() == []


def test_a_group_whose_betas_bound_nothing_is_off_from_then_on() -> None:
    model = Vector(1.0)
    optimizer = Adam([{"params": [model.w], "betas": (0.9, 0.999)}])
    watch = Watch(model, optimizer)
    apply(model, optimizer, 1.0)
    assert (watch.looked, watch.audit.take_notes()) == (1, [])
    for betas in [(0.99, 0.9), (0.99, 0.9), (0.9, 0.999), (0.9, 0.999)]:
        optimizer.param_groups[0]["betas"] = betas
        apply(model, optimizer, 1.0)
    assert watch.looked == 1
    now, earlier = watch.audit.take_notes()
    assert "betas 0.99 and 0.9" in now
    assert "earlier betas of group 0" in earlier


def test_the_limit_joins_all_betas_of_a_group() -> None:
    model = Vector(1.0)
    optimizer = Adam(model.parameters(), betas=(0.95, 0.999))
    history = AdamHistory(optimizer)
    squares = []
    for beta1 in (0.95, 0.9, 0.95):
        optimizer.param_groups[0]["betas"] = (beta1, 0.999)
        history.before_step()
        squares.append(history.limit(0, torch.float32).square)
    assert squares[0] < 26 < squares[1] == squares[2]
    assert squares[1] == pytest.approx(LIMIT, rel=1e-3)


def test_a_zero_start_is_known_and_a_loaded_state_sharpens() -> None:
    model = Vector(1.0)
    optimizer = Adam(model.parameters())
    history = AdamHistory(optimizer)

    def step() -> float:
        history.before_step()
        apply(model, optimizer, 1.0)
        history.after_step()
        factor = history.factor(model.w, history.limit(0, torch.float32))
        assert factor is not None
        return float(factor)

    history.before_step()
    assert history.factor(model.w, history.limit(0, torch.float32)) is None
    assert step() == step() == pytest.approx(math.sqrt(LIMIT), rel=1e-3)
    optimizer.load_state_dict(optimizer.state_dict())
    first = step()
    assert first == pytest.approx(math.sqrt(LIMIT + EARLIER * 0.81 / 0.999), rel=1e-3)
    for _ in range(99):
        last = step()
    assert last == pytest.approx(math.sqrt(LIMIT), rel=1e-3)


def test_a_state_that_was_there_before_the_audit_is_of_unknown_past() -> None:
    model = Vector(1.0)
    optimizer = Adam(model.parameters())
    apply(model, optimizer, 1.0)
    history = AdamHistory(optimizer)
    history.before_step()
    factor = history.factor(model.w, history.limit(0, torch.float32))
    assert isinstance(factor, torch.Tensor)
    assert float(factor) > 999


def test_a_step_without_an_end_leaves_nothing_behind() -> None:
    model = Vector(1.0)
    optimizer = AdamW(model.parameters())
    audit = OptimizerAudit(model_layers(model), optimizer, every=1)
    apply(model, optimizer, 1.0)
    audit.before(0)  # this step raised
    audit.before(1)
    apply(model, optimizer, 1.0)
    assert audit.after(0) is None
    assert audit.after(1) is None
    audit.before(2)
    apply(model, optimizer, 1.0)
    pending = audit.after(2)
    assert pending is not None
    assert (pending.step, pending.rows.shape) == (2, (1, len(COLUMNS)))


def test_strides_complex_numbers_scalars_and_nothing() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.image = nn.Parameter(torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last))
            self.pair = nn.Parameter(torch.randn(7, dtype=torch.complex64))
            self.scalar = nn.Parameter(torch.tensor(1.0))
            self.empty = nn.Parameter(torch.empty(0, 3))

    model = Odd()
    optimizer = AdamW(model.parameters(), lr=1e-3)
    watch = Watch(model, optimizer, elements=50)
    for _ in range(5):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()
    assert watch.looked == 5 * (3 + 1 + 1)
    assert not watch.alerts

    def write() -> None:
        model.image.data[1, 2, 3, 1] = 9.0
        optimizer.state[model.pair]["exp_avg_sq"][3] = complex(1.0, -1.0)

    watch.inside = write
    optimizer.step()
    found = {(a.layer_name, a.detector): a.detail["index"] for a in watch.alerts}
    assert found["image", "adam_step"] == ((1 * 3 + 2) * 4 + 3) * 5 + 1
    assert found["pair", "adam_negative_v"] == 7  # two numbers an element


@pytest.fixture
def _one_rank() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("_one_rank")
def test_a_rank_checks_its_shards() -> None:
    model = Net()
    fully_shard(model)
    optimizer = AdamW(model.parameters(), lr=1e-2)
    watch = Watch(model, optimizer, elements=100)
    train(model, optimizer, 5, seed=0)
    assert watch.looked == 5 * sum(-(-p.numel() // 100) for p in model.parameters())
    assert not watch.alerts
    v = optimizer.state[model.hidden.weight]["exp_avg_sq"].to_local()
    watch.inside = lambda: v.view(-1)[250:251].fill_(-1.0)
    train(model, optimizer, 1, seed=0)
    (alert,) = watch.alerts
    assert (alert.layer_name, alert.detail["index"]) == ("hidden.weight", 250)


class Copies(TorchDispatchMode):
    """Notes what comes from a device to the CPU."""

    def __init__(self) -> None:
        super().__init__()
        self.to_cpu: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        sources = [a for a in args if isinstance(a, torch.Tensor)]
        if (
            isinstance(out, torch.Tensor)
            and out.device.type == "cpu"
            and any(s.device.type == "cuda" for s in sources)
        ):
            self.to_cpu.append(str(func))
        return out


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("host", [False, True], ids=["step-on-device", "step-on-host"])
def test_nothing_waits_for_the_device(host: bool, dtype: torch.dtype) -> None:
    # fake tensors have no values: an operation that needs one raises
    with FakeTensorMode():
        model = Vector(1.0, 2.0)
        model.w = nn.Parameter(torch.zeros(300, device="cuda", dtype=dtype))
        optimizer = AdamW(model.parameters(), capturable=True, foreach=False)
        # afterwards, because the constructor compares it
        optimizer.param_groups[0]["lr"] = torch.tensor(0.1, device="cuda")
        audit = OptimizerAudit(model_layers(model), optimizer, every=1, elements=128)
        with Copies() as copies:
            for step in range(4):
                model.w.grad = torch.zeros_like(model.w)
                audit.before(step)
                if not host or step == 0:
                    optimizer.step()
                    if host:
                        state = optimizer.state[model.w]
                        state["step"] = torch.zeros((), dtype=torch.float32)
                pending = audit.after(step)
                assert pending is not None
                assert pending.rows.device.type == "cuda"
                assert pending.rows.shape == (3, len(COLUMNS))
                if step == 2:
                    # as load_state_dict does, which cannot copy fake tensors
                    optimizer.state = defaultdict(dict, optimizer.state)
            with pytest.raises(Exception, match="_local_scalar_dense"):
                pending.rows.sum().item()
        assert copies.to_cpu == []


def test_betas_on_a_device_are_not_read() -> None:
    with FakeTensorMode():
        model = Vector(1.0)
        model.w = nn.Parameter(torch.zeros(3, device="cuda"))
        betas = (torch.tensor(0.9, device="cuda"), torch.tensor(0.99, device="cuda"))
        optimizer = AdamW(model.parameters(), capturable=True)
        optimizer.param_groups[0]["betas"] = betas
        audit = OptimizerAudit(model_layers(model), optimizer, every=1)
        audit.before(0)
        assert audit.after(0) is None
        (note,) = audit.take_notes()
        assert "betas are on a device" in note
