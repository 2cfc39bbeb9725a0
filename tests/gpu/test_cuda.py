"""What only a CUDA device can show: that nothing waits for it, and that its numbers are right."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sdc_guard import Alert, Guard, RunReader
from sdc_guard.digest import digest_rows, digest_tensor
from sdc_guard.digest.reference import MASK64
from sdc_guard.signals import device_sums
from sdc_guard.signals.batch import batch_digest, fold
from sdc_guard.signals.device_sums import sums_on_device
from sdc_guard.signals.limits import CAPTURING
from sdc_guard.signals.measures import sums_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

STEPS = 10
DEVICE = "cuda"
Batch = tuple[torch.Tensor, torch.Tensor]


@contextlib.contextmanager
def waiting_is_an_error() -> Iterator[None]:
    """Within it, torch raises where the host would wait for the device."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is a prototype
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")


def net() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(33, 257),
        nn.BatchNorm1d(257),
        nn.ReLU(inplace=True),
        nn.Dropout(),
        nn.Linear(257, 5),
    )
    return model.to(DEVICE)


def adam(model: nn.Module, **options: Any) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=0.01, **options)


def batches(count: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    return [
        (
            torch.randn(64, 33, generator=generator).to(DEVICE),
            torch.randn(64, 5, generator=generator).to(DEVICE),
        )
        for _ in range(count)
    ]


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    return nn.functional.mse_loss(model(batch[0]), batch[1])


def train(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: list[Batch], guard: Guard | None
) -> tuple[list[dict[str, torch.Tensor]], list[torch.Tensor]]:
    """Train with clipping; copies of the gradients before it and of the losses, on the device."""
    kept, losses = [], []
    for batch in data:
        loss = loss_of(model, batch)
        loss.backward()
        kept.append(gradients_of(model))
        losses.append(loss.detach().clone())
        if guard is not None:
            guard.observe(loss, batch)
        nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        optimizer.step()
        optimizer.zero_grad()
    return kept, losses


def gradients_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: parameter.grad.detach().clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def norms(gradients: dict[str, torch.Tensor], scale: float = 1.0) -> dict[str, float]:
    return {name: float(value.double().norm()) / scale for name, value in gradients.items()}


def rows(run: Path, query: str) -> list[Any]:
    with RunReader(run) as reader:
        return reader.rows(query)


def recorded_norms(run: Path) -> list[dict[str, float]]:
    found: dict[int, dict[str, float]] = {}
    for step, name, norm in rows(
        run, "SELECT step, name, norm FROM layers JOIN layer_names USING (layer) ORDER BY step"
    ):
        found.setdefault(step, {})[name] = norm
    assert sorted(found) == list(range(len(found)))
    return [found[step] for step in sorted(found)]


def same_bits(one: Any, other: Any) -> int:
    """Compare two nested states bit by bit; returns the number of tensors compared."""
    if isinstance(one, torch.Tensor):
        assert digest_tensor(one) == digest_tensor(other)
        return 1
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        return sum(same_bits(value, other[key]) for key, value in one.items())
    if isinstance(one, (list, tuple)):
        return sum(same_bits(a, b) for a, b in zip(one, other, strict=True))
    assert one == other
    return 0


def sound(guard: Guard) -> None:
    assert guard.health.errors == 0, guard.health.last_error
    assert guard.health.dropped == 0
    assert device_sums._unbuilt == []  # it was the kernel that measured


@pytest.mark.parametrize("budget", [0.2, None])
def test_no_step_waits_and_every_value_is_that_of_float64(
    budget: float | None, tmp_path: Path
) -> None:
    model = net()
    optimizer = adam(model)
    data = batches(STEPS)
    alerts: list[Alert] = []
    guard = Guard(
        model, optimizer, run=tmp_path, digest_budget=budget, policy="record",
        on_alert=alerts.append,
    )  # fmt: skip
    with waiting_is_an_error():
        kept, losses = train(model, optimizer, data, guard)
    guard.close()
    sound(guard)
    assert alerts == []
    for found, gradients in zip(recorded_norms(tmp_path), kept, strict=True):
        assert found == pytest.approx(norms(gradients), rel=1e-6)
    steps = rows(tmp_path, "SELECT loss, batch_hash, accumulation FROM steps ORDER BY step")
    for (loss, batch_hash, accumulation), exact, batch in zip(steps, losses, data, strict=True):
        assert loss == float(exact)
        digest = batch_digest(tuple(part.cpu() for part in batch))
        assert digest is not None
        assert batch_hash == fold(digest)
        assert accumulation == 1
    if budget is None:
        _digests_are_those_of(tmp_path, model, optimizer)


def _digests_are_those_of(run: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Those recorded after the last step, of all parameters and moments, computed on the CPU."""
    found = {
        (kind, name): (h, s1, s2)
        for kind, name, h, s1, s2 in rows(
            run,
            "SELECT kind, name, h, s1, s2 FROM digests JOIN layer_names USING (layer) "
            f"WHERE phase = 'after' AND step = {STEPS - 1}",
        )
    }
    expected = {}
    for name, parameter in model.named_parameters():
        tensors = {"param": parameter} | optimizer.state[parameter]
        for kind in ("param", "exp_avg", "exp_avg_sq"):
            expected[kind, name] = digest_tensor(tensors[kind].detach().cpu())
    unsigned = {key: tuple(value & MASK64 for value in row) for key, row in found.items()}
    assert unsigned == {key: tuple(digest) for key, digest in expected.items()}


def test_digests_on_a_second_stream_are_those_of_the_first(tmp_path: Path) -> None:
    data = batches(STEPS)
    models, alerts = [], list[Alert]()
    for name, beside in (("one", False), ("two", True)):
        model = net()
        optimizer = adam(model)
        guard = Guard(
            model, optimizer, run=tmp_path / name, digest_budget=None, policy="record",
            on_alert=alerts.append, overlap_digests=beside, digest_buffers=True,
            digest_gradients=True,
        )  # fmt: skip
        with waiting_is_an_error():
            train(model, optimizer, data, guard)
        assert bool(guard._collector._overlap and guard._collector._overlap._stream._streams) == (
            beside
        )
        guard.close()
        sound(guard)
        models.append(model)
    assert alerts == []
    assert same_bits(models[0].state_dict(), models[1].state_dict()) > 0
    query = "SELECT step, phase, kind, layer, h, s1, s2 FROM digests ORDER BY ALL"
    assert rows(tmp_path / "one", query) == rows(tmp_path / "two", query)


def test_the_host_runs_ahead_of_a_busy_device(tmp_path: Path) -> None:
    model = net()
    optimizer = adam(model)
    guard = Guard(model, optimizer, run=tmp_path, digest_budget=None)
    data = batches(5)
    train(model, optimizer, data[:4], guard)  # builds the kernel, fills torch's memory pools
    guard.flush()
    torch.cuda.synchronize()
    busy = torch.cuda.Event()
    torch.cuda._sleep(4_000_000_000)  # cycles: more than a second
    busy.record()
    train(model, optimizer, data[4:], guard)
    still_busy = not busy.query()
    waiting = len(guard._pending)
    guard.close()
    assert still_busy  # the host came to this line before the device came to the step
    assert waiting == 2
    sound(guard)


@pytest.mark.parametrize("budget", [0.2, None])
def test_training_ends_in_the_same_bits_with_and_without(
    budget: float | None, tmp_path: Path
) -> None:
    states = []
    for guarded in (True, False):
        model = net()
        optimizer = adam(model)
        data = batches(STEPS)
        torch.cuda.manual_seed(3)  # for the dropout
        guard = None
        if guarded:
            guard = Guard(
                model, optimizer, run=tmp_path, digest_budget=budget,
                shadow=(data[0], loss_of), shadow_every=3,
            )  # fmt: skip
        train(model, optimizer, data, guard)
        states.append([model.state_dict(), optimizer.state_dict(), torch.cuda.get_rng_state()])
        if guard is not None:
            guard.close()
            sound(guard)
    # 6 parameters and 3 buffers, step and two moments of each parameter, the generator
    assert same_bits(*states) == 9 + 3 * 6 + 1
    shadow = rows(tmp_path, "SELECT step, loss = repeat_loss FROM shadow ORDER BY step")
    assert shadow == [(step, True) for step in range(0, STEPS, 3)]


def test_a_shadow_pass_waits_for_nothing(tmp_path: Path) -> None:
    model = net()
    optimizer = adam(model)
    data = batches(4)
    guard = Guard(model, optimizer, run=tmp_path, shadow=(data[0], loss_of), shadow_every=1)
    train(model, optimizer, data[:2], guard)
    with waiting_is_an_error():
        train(model, optimizer, data[2:], guard)
    guard.close()
    sound(guard)
    assert rows(tmp_path, "SELECT count(*) FROM shadow") == [(4,)]


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize("fused", [False, True])
def test_gradients_of_a_grad_scaler_are_recorded_without_its_scale(
    fused: bool, given: bool, tmp_path: Path
) -> None:
    model = net()
    optimizer = adam(model, fused=fused)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=65536.0, growth_interval=3)
    guard = Guard(model, optimizer, run=tmp_path, policy="record", scaler=scaler if given else None)
    expected, scales, skipped = [], [], []
    for step, batch in enumerate(batches(12)):
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = loss_of(model, batch)
        if step in (4, 5):
            loss = loss * float("inf")
        scales.append(scaler.get_scale())
        skipped.append(step in (4, 5))
        scaler.scale(loss).backward()
        expected.append(norms(gradients_of(model), scales[-1]))
        guard.observe(loss, batch)
        if step % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        assert guard.step == step
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    guard.close()
    sound(guard)
    assert len(set(scales)) > 1
    for found, by_hand in zip(recorded_norms(tmp_path), expected, strict=True):
        assert found == pytest.approx(by_hand, rel=1e-6, nan_ok=True)
    found = rows(tmp_path, "SELECT loss_scale, skipped FROM steps ORDER BY step")
    assert found == list(zip(scales, skipped, strict=True))


def test_a_cuda_graph_is_told_in_one_line_and_replays_as_without_a_guard(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    states = []
    for guarded in (True, False):
        model = net()
        optimizer = adam(model, capturable=True)
        guard = Guard(model, optimizer, run=tmp_path) if guarded else None
        torch.cuda.manual_seed(3)
        with caplog.at_level(logging.WARNING, "sdc_guard"):
            _train_in_a_graph(model, optimizer)
        torch.cuda.synchronize()
        states.append([model.state_dict(), optimizer.state_dict()])
        if guard is not None:
            assert guard.step == 3  # those before the capture
            guard.close()
            sound(guard)
    assert same_bits(*states) == 9 + 3 * 6
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"SDC Guard: {CAPTURING}"]


def _train_in_a_graph(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Three steps on a side stream, as capturing asks for, and three replays of a captured one."""
    (batch,) = batches(1)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(model, batch).backward()
        optimizer.step()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for _ in range(3):
        graph.replay()


DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def of_many_kinds(rng: np.random.Generator) -> list[torch.Tensor]:
    """Gradients on the device: all dtypes and sizes, out of line, not contiguous, not finite."""
    sizes = (0, 1, 31, 4095, 4097, 65535, 65536, 65537, 1_000_003)
    made = [
        torch.from_numpy(rng.standard_normal(size)).to(dtype).to(DEVICE)
        for size in sizes
        for dtype in DTYPES
    ]
    made += [whole[1:] for whole in made[-4:]]
    made.append(torch.from_numpy(rng.standard_normal((64, 3, 5, 5))).to(DEVICE).transpose(0, 2))
    made.append(made[-1].float().contiguous(memory_format=torch.channels_last))
    made += [torch.full((9000,), scale, device=DEVICE) for scale in (1e30, 1e-30, 3e38, 1e-44)]
    made.append(torch.tensor([1.0, float("nan"), float("inf"), -0.0], device=DEVICE).repeat(999))
    made.append(torch.tensor([3 + 4j, 0j], device=DEVICE))
    made.append(torch.tensor([0.5, -2.0], device=DEVICE).to(torch.float8_e4m3fn))
    return made


def test_the_kernel_agrees_with_plain_torch(rng: np.random.Generator) -> None:
    gradients = of_many_kinds(rng)
    numel = [gradient.numel() for gradient in gradients]
    first = sums_on_device(gradients, numel).cpu()
    assert device_sums._unbuilt == []
    for row, gradient in zip(first.tolist(), gradients, strict=True):
        assert row == pytest.approx(sums_of(gradient).tolist(), rel=1e-6, abs=0, nan_ok=True)
    with waiting_is_an_error():
        again = sums_on_device(gradients, numel)
    assert digest_tensor(again) == digest_tensor(first)  # the same bits each time


def test_sixty_four_million_elements_are_exact_to_a_millionth() -> None:
    torch.manual_seed(0)
    for scale in (1.0, 1e30, 1e-30):
        gradient = torch.randn(1 << 26, device=DEVICE) * scale
        (row,) = sums_on_device([gradient], [gradient.numel()]).tolist()
        wide = gradient.double()
        assert row[0] == pytest.approx(float(wide.square().sum()), rel=1e-6)
        assert row[1] == float(wide.abs().max())
        assert row[2] == pytest.approx(float(wide.abs().sum()), rel=1e-6)
        assert row[3:] == [0, int((wide == 0).sum())]
        gradient.fill_(0.1234567 * scale)  # rounding errors of equal numbers all go one way
        (row,) = sums_on_device([gradient], [gradient.numel()]).tolist()
        assert row[0] == pytest.approx(float(gradient[0].double()) ** 2 * (1 << 26), rel=1e-6)
        assert row[2] == pytest.approx(float(gradient[0].double()) * (1 << 26), rel=1e-6)


def test_addresses_that_change_are_followed() -> None:
    for size in (10, 70_000, 200_000, 10):
        gradients = [torch.full((size,), float(number), device=DEVICE) for number in range(1, 5)]
        found = sums_on_device(gradients, [size] * 4).tolist()
        for number, row in enumerate(found, start=1):
            assert row == pytest.approx([number**2 * size, number, number * size, 0, 0], rel=1e-6)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_gradients_on_two_devices() -> None:
    gradients = [torch.full((5,), 2.0, device=device) for device in ("cuda:1", "cuda:0", "cuda:1")]
    with waiting_is_an_error():
        found = sums_on_device(gradients, [5, 5, 5])
    assert found.device == torch.device("cuda:1")
    assert found.tolist() == [[20.0, 2.0, 10.0, 0.0, 0.0]] * 3


def test_digests_are_the_same_on_the_device_and_on_the_cpu(rng: np.random.Generator) -> None:
    tensors = [
        *of_many_kinds(rng),
        torch.arange(100, device=DEVICE),
        torch.ones(7, device=DEVICE) > 0,
    ]
    with waiting_is_an_error():
        on_device = digest_rows(tensors)
    in_host = digest_rows([tensor.cpu() for tensor in tensors])
    assert on_device.cpu().tolist() == in_host.tolist()
