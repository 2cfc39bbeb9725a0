"""What the guard does in a training step on an accelerator waits for no device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from device_waits import Event, Waits, backward, fake_device
from torch import nn
from torch.amp.grad_scaler import GradScaler

from sdc_guard import Guard, evidence
from sdc_guard.evidence import HostCopy
from sdc_guard.signals import chunk_table, gradient_table, shadow
from sdc_guard.signals.limits import CAPTURING
from sdc_guard.signals.scaling import LossScale


@pytest.fixture
def _events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies to the host end when Event.arrived says so, and bring zeros."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: None)
    monkeypatch.setattr(evidence, "_event_behind", lambda stream: Event())
    monkeypatch.setattr("sdc_guard.pending.JUDGE_SECONDS", 0.0)
    monkeypatch.setattr(Event, "arrived", False)
    monkeypatch.setattr(Event, "waited", [])


def zeros_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let copies be read: as zeros, because tensors of this device have no values."""
    get = HostCopy.get

    def read(copy: HostCopy) -> torch.Tensor:
        if copy._event is None:
            return get(copy)
        if not copy.ready():
            copy._event.synchronize()
        return torch.zeros(copy._host.shape, dtype=copy._host.dtype)

    monkeypatch.setattr(HostCopy, "get", read)


def model_on(*devices: str, dtype: torch.dtype = torch.float32) -> nn.Module:
    parts: list[nn.Module] = []
    for device in devices:
        parts += [
            nn.Conv2d(3, 3, 3, device=device, dtype=dtype),
            nn.BatchNorm2d(3, device=device, dtype=dtype),
        ]
    model = nn.Sequential(*parts)
    next(model.parameters()).requires_grad_(False)
    return model


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    if all(parameter.is_cuda for parameter in model.parameters()):
        return torch.optim.Adam(model.parameters(), capturable=True, foreach=False)
    return torch.optim.SGD(model.parameters(), foreach=False)


def train(
    guard: Guard | None,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Any,
    steps: int = 3,
) -> None:
    device = next(model.parameters()).device
    for _ in range(steps):
        for loss in (torch.zeros((), device=device), 0.5):  # micro-batches
            backward(list(model.parameters()))
            if guard is not None:
                guard.observe(loss, batch)
        if isinstance(optimizer, torch.optim.Adam):  # clipping on two kinds of device waits
            nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=False)
        optimizer.step()
        optimizer.zero_grad()


SETUPS: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
    "one device": lambda: (model_on("cuda"), torch.zeros(4, 3, device="cuda")),
    "half precision": lambda: (
        model_on("cuda", dtype=torch.bfloat16),
        {"x": torch.zeros(4, 3, device="cuda", dtype=torch.float16), "mask": torch.ones(4) > 0},
    ),
    "two devices": lambda: (
        model_on("cuda:0", "cuda:1"),
        (torch.zeros(4, device="cuda:0"), torch.zeros(4, device="cuda:1")),
    ),
    "batch in host memory": lambda: (model_on("cuda"), (torch.zeros(4, 3), torch.arange(4))),
    "layers in host memory": lambda: (model_on("cpu", "cuda"), torch.zeros(4, 3, device="cuda")),
}


EVERYTHING = {"digest_buffers": True, "digest_gradients": True}


@pytest.mark.usefixtures("_events")
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
@pytest.mark.parametrize(("budget", "more"), [(0.2, {}), (None, {}), (None, EVERYTHING)])
@pytest.mark.parametrize("setup", SETUPS)
def test_no_operation_of_a_step_waits_for_the_device(
    setup: str,
    budget: float | None,
    more: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if setup == "two devices" and torch.cuda.device_count() == 1:
        pytest.skip("torch asks the driver for the second device, which this machine lacks")
    with fake_device():
        model, batch = SETUPS[setup]()
        optimizer = optimizer_of(model)
        guard = Guard(model, optimizer, run=tmp_path / "run", digest_budget=budget, **more)
        with Waits() as waits:
            train(guard, model, optimizer, batch)
    assert waits.found == []
    assert guard.health.errors == 0, guard.health.last_error
    assert guard.step == 3
    assert {"gradient_sums", "copy_"} <= set(waits.on_device)
    assert len(guard._pending) == 6  # nothing was read before it arrived

    # and reading what has arrived waits for no device; the known answer, read as zeros, is wrong
    # and asked for again
    monkeypatch.setattr(Event, "arrived", True)
    zeros_for(monkeypatch)
    with fake_device(), Waits() as waits:
        guard._drain()
        assert len(guard._pending) == 0
        guard.close()
    assert waits.found == []
    assert Event.waited == []
    assert guard.health.errors == 0, guard.health.last_error


@pytest.mark.usefixtures("_events")
def test_a_batch_in_host_memory_stays_there(tmp_path: Path) -> None:
    with fake_device():
        model = model_on("cuda")
        optimizer = torch.optim.SGD(model.parameters(), foreach=False)
        guard = Guard(model, optimizer, run=tmp_path / "run")
        with Waits() as waits:
            guard.observe(0.5, torch.zeros(4, 3))
        (copy,) = guard._collector._batches
    assert copy.ready()
    assert waits.on_device == []
    guard.close()


@pytest.mark.usefixtures("_events")
def test_nothing_of_the_guard_comes_into_a_captured_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with fake_device():
        model = model_on("cuda")
        optimizer = torch.optim.Adam(model.parameters(), capturable=True, foreach=False)
        with Waits() as alone:
            train(None, model, optimizer, None, steps=2)
        optimizer.state.clear()
        guard = Guard(model, optimizer, run=tmp_path / "run", digest_budget=None)
        monkeypatch.setattr("sdc_guard.signals.limits._WITH_CUDA", True)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        with Waits() as captured:
            train(guard, model, optimizer, None, steps=2)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert captured.on_device == alone.on_device
    assert guard.step == 0
    assert guard.health.errors == 0, guard.health.last_error
    assert [record.message for record in caplog.records] == [f"SDC Guard: {CAPTURING}"]
    guard.close()


@pytest.mark.usefixtures("_events")
def test_the_loss_scale_is_not_waited_for() -> None:
    with fake_device():
        scaler = GradScaler("cpu")
        scaler._scale = torch.full((), 65536.0, device="cuda")
        parameter = nn.Parameter(torch.zeros(2, device="cuda"))
        fused = torch.optim.SGD([parameter])
        fused.found_inf = torch.zeros(1, device="cuda")  # type: ignore[attr-defined] # as the scaler does
        with Waits() as waits:
            scale = LossScale(scaler)
            scale.look_around(fused)
            scale.backward_ended()
            copies = [
                HostCopy(x) for x in (scale.value(), scale.found_inf([fused])) if x is not None
            ]
    assert len(copies) == 2
    assert waits.found == []
    assert not scale.updated_since()


@pytest.mark.usefixtures("_events")
def test_a_shadow_pass_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # the state of a generator on a device lies in host memory
    state = torch.zeros(16, dtype=torch.uint8)
    put_back: list[Any] = []
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: state)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda *pair: put_back.append(pair))
    monkeypatch.setattr(shadow, "fold", lambda digest: 0)  # read once, when the guard is made

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).square().mean()

    with fake_device():
        model = nn.Sequential(
            nn.Conv2d(3, 4, 3, device="cuda"), nn.BatchNorm2d(4, device="cuda"), nn.Dropout()
        )
        shadow_pass = shadow.ShadowPass(torch.zeros(2, 3, 5, 5, device="cuda"), loss)
        shadow_pass(model)  # the first may look for more
        with Waits() as waits:
            result = shadow_pass(model)
            HostCopy(result.losses)
    assert result.losses.device.type == "cuda"
    assert put_back
    assert waits.found == []


def test_the_table_of_addresses_is_not_waited_for() -> None:
    with fake_device(), Waits() as waits:
        made = chunk_table.upload(np.arange(1 << 20), torch.device("cuda:0"))
    assert made.device.type == "cuda"
    assert waits.found == []


BAD: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: x[0].item(),
    "float": lambda x: float(x.sum()),
    "a condition": lambda x: bool(x[0] > 0),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "equal": lambda x: torch.equal(x, x),
    "nonzero": lambda x: x.nonzero(),
    "a mask": lambda x: x[x > 0],
    "setting by a mask": lambda x: x.__setitem__(x > 0, 0.0),
    "masked_select": lambda x: torch.masked_select(x, x > 0),
    "unique": lambda x: x.unique(),
    "a list of places": lambda x: x[[0, 2]],
    "a scalar from the host": lambda x: torch.tensor(1.0, device=x.device),
    "pageable memory": lambda x: torch.empty(4).copy_(x, non_blocking=True),
    "a pinned copy that blocks": lambda x: torch.empty(4, pin_memory=True).copy_(x),
    "much from pageable memory": lambda x: torch.zeros(1 << 20).to(x.device, non_blocking=True),
}


@pytest.mark.parametrize("bad", BAD)
def test_what_waits_is_found(bad: str) -> None:
    with fake_device():
        tensor = torch.zeros(4, device="cuda")
        with Waits() as waits:
            try:
                BAD[bad](tensor)
            except RuntimeError:  # values that a tensor without values does not have
                assert waits.found
    assert waits.found


@pytest.mark.parametrize("good", ["pinned", "arithmetic", "place by place"])
def test_what_does_not_wait_is_not_found(good: str) -> None:
    with fake_device():
        tensor = torch.zeros(4, device="cuda")
        with Waits() as waits:
            if good == "pinned":
                torch.empty(4, pin_memory=True).copy_(tensor, non_blocking=True)
            elif good == "arithmetic":
                torch.where(tensor > 0, tensor, 1.0).sum().mul_(2.0).clamp_(max=3.0)
            else:
                tensor[1] += 2.0
                tensor[:2] = tensor[torch.zeros(2, dtype=torch.int64, device="cuda")]
    assert waits.found == []


@pytest.mark.usefixtures("_events")
def test_a_capture_that_waits_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = gradient_table.sums_on_device

    def waiting(found: list[torch.Tensor], numel: list[int]) -> torch.Tensor:
        sums = measured(found, numel)
        if sums[0, 0].item() > 0:
            sums[0, 0] = 0.0
        return sums

    monkeypatch.setattr(gradient_table, "sums_on_device", waiting)
    with fake_device():
        model = model_on("cuda")
        optimizer = torch.optim.SGD(model.parameters(), foreach=False)
        guard = Guard(model, optimizer, run=tmp_path / "run")
        with Waits() as waits:
            train(guard, model, optimizer, None, steps=1)
    assert any("_local_scalar_dense" in line for line in waits.found)
    guard._pending._waiting.clear()
    guard.close()
