"""The guard in the trainings that people have: what it records against float64 by hand."""

from __future__ import annotations

import copy
import io
import logging
import math
import multiprocessing
import pickle
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sdc_guard import Alert, Guard, RunReader, TrainingHalted

Batch = tuple[torch.Tensor, torch.Tensor]
_GUARDS: list[Guard] = []


@pytest.fixture(autouse=True)
def _close_guards() -> Iterator[None]:
    yield
    while _GUARDS:
        _GUARDS.pop().close()


def attach(model: nn.Module, optimizer: Any, run: Path, **options: Any) -> Guard:
    options.setdefault("policy", "record")
    guard = Guard(model, optimizer, run=run, **options)
    _GUARDS.append(guard)
    return guard


def net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 3))


def batches(count: int, seed: int = 1) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(16, 6, generator=generator),
            torch.randint(0, 3, (16,), generator=generator),
        )
        for _ in range(count)
    ]


def loss_of(model: nn.Module, batch: Batch) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def norms(model: nn.Module) -> dict[str, float]:
    """Norm of each present gradient by the layer's name, in float64."""
    return {
        name: float(parameter.grad.double().norm())
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def recorded(run: Path, scope: str = "local") -> dict[int, dict[str, float]]:
    """Norms by step and layer's name."""
    steps: dict[int, dict[str, float]] = {}
    with RunReader(run) as reader:
        query = "SELECT step, name, norm FROM layers JOIN layer_names USING (layer)"
        for step, name, norm in reader.rows(f"{query} WHERE scope = '{scope}' ORDER BY step, name"):
            assert name not in steps.setdefault(step, {}), "one row per layer and step"
            steps[step][name] = norm
    return steps


def rows(run: Path, query: str) -> list[Any]:
    with RunReader(run) as reader:
        return reader.rows(query)


def equal(found: dict[int, dict[str, float]], expected: list[dict[str, float]]) -> None:
    assert sorted(found) == list(range(len(expected)))
    for step, layers in enumerate(expected):
        assert found[step] == pytest.approx(layers, rel=1e-6, nan_ok=True), f"step {step}"


def sound(guard: Guard) -> None:
    assert guard.health.errors == 0, guard.health.last_error
    assert guard.health.dropped == 0


def same_bits(one: nn.Module, other: nn.Module) -> None:
    for a, b in zip(one.state_dict().values(), other.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    data: list[Batch],
    guard: Guard | None = None,
    before_step: Callable[[], object] = lambda: None,
) -> list[dict[str, float]]:
    """Plain training; the gradients' norms before `before_step`."""
    expected = []
    for batch in data:
        loss = loss_of(model, batch)
        loss.backward()
        if guard:
            guard.observe(loss, batch)
        expected.append(norms(model))
        before_step()
        optimizer.step()
        optimizer.zero_grad()
    return expected


def test_setups_plain(tmp_path: Path) -> None:
    model, twin = net(), net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path)
    expected = train(model, optimizer, batches(5), guard)
    train(twin, torch.optim.AdamW(twin.parameters(), lr=0.01), batches(5))
    guard.close()
    equal(recorded(tmp_path), expected)
    totals = [math.sqrt(sum(norm**2 for norm in layers.values())) for layers in expected]
    found = rows(
        tmp_path, "SELECT grad_norm, skipped, loss_scale, accumulation FROM steps ORDER BY step"
    )
    assert [row[0] for row in found] == pytest.approx(totals, rel=1e-6)
    assert {row[1:] for row in found} == {(False, None, 1)}
    same_bits(model, twin)
    sound(guard)


def test_setups_accumulation_over_four_micro_batches(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path)
    expected, losses = [], []
    for step in range(3):
        total = 0.0
        for batch in batches(4, seed=step):
            loss = loss_of(model, batch) / 4
            loss.backward()
            guard.observe(loss * 4, batch)
            total += loss.item()
        expected.append(norms(model))
        losses.append(total)
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    equal(recorded(tmp_path), expected)
    found = rows(tmp_path, "SELECT loss, accumulation FROM steps ORDER BY step")
    assert [row[0] for row in found] == pytest.approx(losses, rel=1e-6)
    assert {row[1] for row in found} == {4}
    sound(guard)


def test_setups_gradients_that_are_zeroed_in_place(tmp_path: Path) -> None:
    model = nn.ModuleDict({"used": nn.Linear(6, 3), "idle": nn.Linear(6, 3)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path)
    for step, batch in enumerate(batches(4)):
        name = "idle" if step == 0 else "used"
        nn.functional.cross_entropy(model[name](batch[0]), batch[1]).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
    guard.close()
    found = recorded(tmp_path)
    assert sorted(found[0]) == ["idle.bias", "idle.weight"]  # missing is not zero
    assert found[1]["idle.weight"] == 0.0  # and zero is not what it was before
    assert found[1]["used.weight"] > 0
    sound(guard)


@pytest.mark.parametrize("given", [True, False], ids=["scaler given", "scaler found"])
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "unfused"])
def test_setups_grad_scaler(tmp_path: Path, fused: bool, given: bool) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=65536.0, growth_interval=3)
    alerts: list[Alert] = []
    guard = attach(
        model, optimizer, tmp_path, scaler=scaler if given else None, on_alert=alerts.append
    )
    expected, scales, skipped = [], [], []
    for step, batch in enumerate(batches(12)):
        loss = loss_of(model, batch)
        if step in (4, 5):
            loss = loss * float("inf")  # overflows as a scale that is too large does
        scales.append(scaler.get_scale())
        skipped.append(step in (4, 5))
        scaler.scale(loss).backward()
        guard.observe(loss, batch)
        expected.append({name: norm / scales[-1] for name, norm in norms(model).items()})
        if step % 2:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        assert guard.step == step, "a skipped step counts"
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    guard.close()
    assert len(set(scales)) == 3, "the scale grew and fell"
    equal(recorded(tmp_path), expected)
    found = rows(tmp_path, "SELECT loss_scale, skipped, accumulation FROM steps ORDER BY step")
    assert [row[0] for row in found] == scales
    assert [row[1] for row in found] == skipped
    assert {row[2] for row in found} == {1}
    events = rows(tmp_path, "SELECT step FROM events WHERE kind = 'scaler skip' ORDER BY step")
    assert events == [(4,), (5,)]
    # the script's loss was infinite; neither the scale's changes nor the skipped steps are alarms
    assert {alert.detector for alert in alerts} <= {"nonfinite_loss"}
    sound(guard)


def test_setups_grad_scaler_that_overflows_at_the_start(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    guard = attach(model, optimizer, tmp_path)
    skipped = []
    for batch in batches(12):
        loss = loss_of(model, batch) * 100
        scaler.scale(loss).backward()
        guard.observe(loss, batch)
        before = scaler.get_scale()
        scaler.step(optimizer)
        scaler.update()
        skipped.append(scaler.get_scale() < before)
        optimizer.zero_grad()
    guard.close()
    assert 1 < sum(skipped) < 12
    assert [row[0] for row in rows(tmp_path, "SELECT skipped FROM steps ORDER BY step")] == skipped
    sound(guard)


def test_setups_a_collapsing_loss_scale_is_one_alert(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    alerts: list[Alert] = []
    guard = attach(model, optimizer, tmp_path, scaler=scaler, on_alert=alerts.append)
    for batch in batches(10):
        loss = loss_of(model, batch)
        (scaler.scale(loss) * float("inf")).backward()
        guard.observe(loss, batch)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    guard.close()
    assert [(alert.detector, alert.step) for alert in alerts] == [("loss_scale", 2)]
    assert rows(tmp_path, "SELECT count(*) FROM steps WHERE skipped") == [(10,)]


@pytest.mark.parametrize("clip", ["norm", "value"])
def test_setups_clipping(tmp_path: Path, clip: str) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path)

    def clipped() -> None:
        if clip == "norm":
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        else:
            nn.utils.clip_grad_value_(model.parameters(), 1e-4)

    expected = train(model, optimizer, batches(3), guard, clipped)
    guard.close()
    equal(recorded(tmp_path), expected)


def test_setups_clipping_spreads_an_inf_and_the_culprit_is_named(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    alerts: list[Alert] = []
    guard = attach(model, optimizer, tmp_path, on_alert=alerts.append)
    model[2].bias.register_hook(lambda gradient: gradient * float("inf"))
    train(
        model,
        optimizer,
        batches(1),
        guard,
        lambda: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    )
    guard.close()
    assert [(alert.detector, alert.layer_name) for alert in alerts] == [
        ("nonfinite_gradient", "2.bias")
    ]


@pytest.mark.parametrize("kind", ["adamw", "lbfgs"])
def test_setups_closure(tmp_path: Path, kind: str) -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        if kind == "adamw":
            return torch.optim.AdamW(model.parameters(), lr=0.01)
        return torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    model, twin = net(), net()
    expected: list[dict[str, float]] = []
    losses: list[float] = []

    def run(model: nn.Module, optimizer: torch.optim.Optimizer, note: bool) -> None:
        for batch in batches(4):
            first = [True]

            def closure(batch: Batch = batch, first: list[bool] = first) -> torch.Tensor:
                optimizer.zero_grad()
                loss = loss_of(model, batch)
                loss.backward()
                if note and first[0]:
                    expected.append(norms(model))
                    losses.append(loss.item())
                first[0] = False
                if kind == "adamw":
                    nn.utils.clip_grad_norm_(model.parameters(), 0.01)
                return loss

            optimizer.step(closure)  # type: ignore[arg-type] # torch wants a float of it

    optimizer = make(model)
    guard = attach(model, optimizer, tmp_path)
    run(model, optimizer, True)
    run(twin, make(twin), False)
    guard.close()
    equal(recorded(tmp_path), expected)
    assert [row[0] for row in rows(tmp_path, "SELECT loss FROM steps ORDER BY step")] == losses
    same_bits(model, twin)
    sound(guard)


def test_setups_two_optimizers_with_a_guard_each(tmp_path: Path) -> None:
    """A GAN: the generator's backward leaves gradients in the discriminator."""
    torch.manual_seed(0)
    model = nn.ModuleDict({"generator": nn.Linear(4, 6), "discriminator": nn.Linear(6, 1)})
    optimizers = {name: torch.optim.Adam(part.parameters()) for name, part in model.items()}
    guards = {name: attach(part, optimizers[name], tmp_path / name) for name, part in model.items()}
    expected: dict[str, list[dict[str, float]]] = {name: [] for name in model}
    for _ in range(4):
        noise = torch.randn(8, 4)
        fake = model["generator"](noise)
        optimizers["discriminator"].zero_grad()
        model["discriminator"](fake.detach()).square().mean().backward()
        expected["discriminator"].append(norms(model["discriminator"]))
        optimizers["discriminator"].step()
        optimizers["generator"].zero_grad()
        model["discriminator"](fake).mean().backward()
        expected["generator"].append(norms(model["generator"]))
        optimizers["generator"].step()
    for name, guard in guards.items():
        guard.close()
        sound(guard)
        equal(recorded(tmp_path / name), expected[name])
        assert rows(tmp_path / name, "SELECT DISTINCT accumulation FROM steps") == [(1,)]


def test_setups_two_optimizers_that_step_together(tmp_path: Path) -> None:
    model = net()
    matrices = [p for p in model.parameters() if p.ndim == 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    optimizers = [torch.optim.AdamW(matrices), torch.optim.SGD(vectors, lr=0.1, momentum=0.9)]
    guard = attach(model, optimizers, tmp_path, digest_budget=None)
    expected = []
    for batch in batches(4):
        loss = loss_of(model, batch)
        loss.backward()
        guard.observe(loss, batch)
        expected.append(norms(model))
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    assert guard.step == 4
    guard.close()
    equal(recorded(tmp_path), expected)
    # nothing changed between two steps, although the two optimizers follow one another
    assert rows(tmp_path, "SELECT count(*) FROM alerts") == [(0,)]
    sound(guard)


def test_setups_optimizer_in_backward(tmp_path: Path) -> None:
    def in_backward(model: nn.Module) -> list[torch.optim.Optimizer]:
        optimizers = {p: torch.optim.AdamW([p], lr=0.01) for p in model.parameters()}

        def apply(parameter: torch.Tensor) -> None:
            optimizers[parameter].step()  # type: ignore[index] # it is one of them
            optimizers[parameter].zero_grad()  # type: ignore[index] # as above

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(apply)  # type: ignore[no-untyped-call] # torch has no types here
        return list(optimizers.values())

    model, twin, plain = net(), net(), net()
    guard = attach(model, in_backward(model), tmp_path, digest_budget=None)
    in_backward(twin)
    for batch in batches(4):
        loss = loss_of(model, batch)
        loss.backward()
        guard.observe(loss, batch)
        loss_of(twin, batch).backward()
    guard.close()
    expected = train(plain, torch.optim.AdamW(plain.parameters(), lr=0.01), batches(4))
    equal(recorded(tmp_path), expected)
    same_bits(model, twin)
    assert rows(tmp_path, "SELECT count(*) FROM alerts") == [(0,)]
    told = rows(tmp_path, "SELECT detail FROM events WHERE kind = 'capture'")
    assert len(told) == 1
    assert "other hooks were registered on 4 parameters before" in told[0][0]
    sound(guard)


def test_setups_sparse_embedding(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Embedding(50, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(model.parameters())
    guard = attach(model, optimizer, tmp_path)
    expected = []
    for step in range(3):
        words = torch.tensor([[1, 1, step], [7, 1, 9]])
        model(words).square().sum().backward()
        assert model.weight.grad is not None
        expected.append({"weight": float(model.weight.grad.to_dense().double().norm())})
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    equal(recorded(tmp_path), expected)
    # words 0, 1, 7, 9, then 1, 7, 9: the other rows are zero
    found = rows(tmp_path, "SELECT zeros FROM layers ORDER BY step")
    assert found == [(4 * 46,), (4 * 47,), (4 * 46,)]
    sound(guard)


def test_setups_frozen_unfrozen_replaced_and_added_parameters(tmp_path: Path) -> None:
    model = net()
    model[0].weight.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path)
    expected = train(model, optimizer, batches(2), guard)
    assert "0.weight" not in expected[0]
    model[0].weight.requires_grad_(True)  # unfrozen: in the optimizer already
    expected += train(model, optimizer, batches(2), guard)
    low, up = nn.Parameter(torch.randn(6, 2) * 0.1), nn.Parameter(torch.zeros(2, 3))
    model.register_parameter("lora_low", low)
    model.register_parameter("lora_up", up)
    optimizer.add_param_group({"params": [low, up]})
    model.forward = lambda x: nn.Sequential.forward(model, x) + x @ low @ up  # type: ignore[method-assign] # as an adapter does
    expected += train(model, optimizer, batches(2), guard)
    assert {"0.weight", "lora_up"} <= set(expected[-1])
    old = model[2].bias
    model[2].bias = nn.Parameter(torch.zeros(3))
    for group in optimizer.param_groups:
        group["params"] = [model[2].bias if p is old else p for p in group["params"]]
    guard.refresh()
    expected += train(model, optimizer, batches(2), guard)
    guard.close()
    # the first step after parameters were added was measured before the guard could hook them
    found = recorded(tmp_path)
    equal(found, expected)
    added = rows(tmp_path, "SELECT step, detail FROM events WHERE kind = 'layers changed'")
    assert added == [(4, '{"added": ["lora_low", "lora_up"], "gone": []}')]
    sound(guard)


def test_setups_tied_weights(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.ModuleDict({"tokens": nn.Embedding(9, 5), "head": nn.Linear(5, 9, bias=False)})
    model["head"].weight = model["tokens"].weight
    optimizer = torch.optim.AdamW(model.parameters())
    guard = attach(model, optimizer, tmp_path)
    words = torch.tensor([1, 2, 3, 3])
    nn.functional.cross_entropy(model["head"](model["tokens"](words)), words).backward()
    expected = float(model["head"].weight.grad.double().norm())  # type: ignore[union-attr] # a backward ran
    optimizer.step()
    guard.close()
    assert rows(tmp_path, "SELECT grad_norm FROM steps")[0][0] == pytest.approx(expected, rel=1e-6)
    with RunReader(tmp_path) as reader:
        (layer,) = reader.run_file.layers
    assert (layer.name, layer.aliases) == ("tokens.weight", ("head.weight",))


def test_setups_weight_norm(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)))
    optimizer = torch.optim.AdamW(model.parameters())
    guard = attach(model, optimizer, tmp_path)
    expected = train(model, optimizer, batches(2), guard)
    guard.close()
    equal(recorded(tmp_path), expected)
    with RunReader(tmp_path) as reader:
        aliases = {layer.name: layer.aliases for layer in reader.run_file.layers}
    assert aliases["0.parametrizations.weight.original0"] == ("0.weight (parametrized)",)


@pytest.mark.parametrize("reentrant", [True, False])
def test_setups_activation_checkpointing(tmp_path: Path, reentrant: bool) -> None:
    from torch.utils.checkpoint import checkpoint

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head = nn.Linear(6, 6), nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.inner(x.requires_grad_())
            for _ in range(2):
                x = checkpoint(self.inner, x, use_reentrant=reentrant)
            return self.head(checkpoint(self.inner, x, use_reentrant=reentrant))

    torch.manual_seed(0)
    model = Shared()
    optimizer = torch.optim.AdamW(model.parameters())
    guard = attach(model, optimizer, tmp_path)
    expected = train(model, optimizer, batches(3), guard)
    guard.close()
    equal(recorded(tmp_path), expected)
    assert rows(tmp_path, "SELECT DISTINCT accumulation FROM steps") == [(1,)]
    sound(guard)


@pytest.mark.parametrize("when", ["before", "after"])
def test_setups_compile(tmp_path: Path, when: str) -> None:
    model = net()
    compiled = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    data = batches(4)
    if when == "after":
        loss_of(compiled, data[0]).backward()
        optimizer.zero_grad()
    guard = attach(compiled, optimizer, tmp_path)
    expected = []
    for batch in data:
        loss = loss_of(compiled, batch)
        loss.backward()
        guard.observe(loss, batch)
        expected.append(norms(model))
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    equal(recorded(tmp_path), expected)  # and the names are those of the model, not _orig_mod's
    sound(guard)


def test_setups_compiled_autograd_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path)
    expected = []
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING, "sdc_guard"):
        warnings.simplefilter("ignore")  # its own
        for batch in batches(3):
            with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
                loss = loss_of(model, batch)
                loss.backward()
            expected.append(norms(model))
            optimizer.step()
            optimizer.zero_grad()
    guard.close()
    equal(recorded(tmp_path), expected)
    assert [r.getMessage() for r in caplog.records if "gradients are read at the" in r.getMessage()]


def test_setups_cuda_graph_capture_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path)
    monkeypatch.setattr("sdc_guard.guard.capturing", lambda: True)
    with caplog.at_level(logging.WARNING, "sdc_guard"):
        train(model, optimizer, batches(3), guard)
    guard.close()
    told = [r.getMessage() for r in caplog.records if "CUDA graph" in r.getMessage()]
    assert len(told) == 1


def test_setups_deepcopy_pickle_and_save_record_nothing(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path)
    model.guard = guard  # as a trainer that keeps it
    train(model, optimizer, batches(2), guard)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    copies = [
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(buffer, weights_only=False),
    ]
    for other in copies:
        same_bits(model, other)
        its_own = copy.deepcopy(optimizer)
        its_own.param_groups[0]["params"] = list(other.parameters())
        its_own.state.clear()
        train(other, its_own, batches(2), other.guard)
    assert guard.step == 2
    guard.close()
    assert rows(tmp_path, "SELECT count(*) FROM steps") == [(2,)]
    sound(guard)


def _in_a_fork(model: nn.Module, optimizer: torch.optim.Optimizer, guard: Guard) -> None:
    train(model, optimizer, batches(2), guard)
    guard.close()


def _in_a_spawn(model: nn.Module) -> None:
    train(model, torch.optim.AdamW(model.parameters()), batches(2))


def test_setups_other_processes_record_nothing(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path)
    train(model, optimizer, batches(2), guard)
    fork = multiprocessing.get_context("fork").Process(
        target=_in_a_fork, args=(model, optimizer, guard)
    )
    spawn = multiprocessing.get_context("spawn").Process(target=_in_a_spawn, args=(model,))
    for process in (fork, spawn):
        process.start()
        process.join(100)
        assert process.exitcode == 0
    train(model, optimizer, batches(1), guard)
    guard.close()
    assert rows(tmp_path, "SELECT step FROM steps ORDER BY step") == [(0,), (1,), (2,)]
    sound(guard)


def test_setups_attach_and_detach_three_times(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for first in (0, 2, 4):
        guard = attach(model, optimizer, tmp_path, first_step=first)
        train(model, optimizer, batches(2), guard)
        guard.close()
        guard.close()
        sound(guard)
    assert rows(tmp_path, "SELECT step FROM steps ORDER BY step") == [(n,) for n in range(6)]
    assert rows(
        tmp_path, "SELECT max(n) FROM (SELECT count(*) AS n FROM layers GROUP BY step)"
    ) == [(4,)]
    train(model, optimizer, batches(1))
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    assert not optimizer._optimizer_step_pre_hooks


def test_setups_attach_again_without_detaching(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A notebook's cell that runs three times."""
    with caplog.at_level(logging.WARNING, "sdc_guard"):
        for number in range(3):
            model = net()
            optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
            guard = attach(model, optimizer, tmp_path / "run")
            train(model, optimizer, batches(2), guard)
            again = attach(model, optimizer, tmp_path / f"other {number}")
            train(model, optimizer, batches(1), again)
            assert guard.step == 2
    again.close()
    assert rows(tmp_path / "run", "SELECT step FROM steps ORDER BY step") == [(0,), (1,)]
    assert any("an earlier guard" in record.getMessage() for record in caplog.records)


def test_setups_a_hook_of_our_own_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, twin = net(), net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path)

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("broken on purpose")

    train(model, optimizer, batches(1), guard)
    for name in (
        "sdc_guard.signals.gradients.sums_of_many",
        "sdc_guard.collector.batch_digest",
        "sdc_guard.collector.digest_state",
        "sdc_guard.recorder.layer_rows",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(name, broken)
            train(model, optimizer, batches(1), guard)
    train(model, optimizer, batches(2), guard)
    guard.close()
    train(twin, torch.optim.AdamW(twin.parameters(), lr=0.01), [*batches(1) * 5, *batches(2)])
    same_bits(model, twin)
    assert guard.health.errors >= 4
    assert "broken on purpose" in guard.health.last_error
    assert (6,) in rows(tmp_path, "SELECT step FROM steps")


@pytest.mark.parametrize("closure", [False, True], ids=["plain", "closure"])
def test_setups_policy_skip_leaves_the_step_out(tmp_path: Path, closure: bool) -> None:
    model, twin = net(), net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    reference = torch.optim.AdamW(twin.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path, policy="skip", digest_budget=None)
    for step, batch in enumerate(batches(5)):
        bad = step == 2

        def evaluate(batch: Batch = batch, bad: bool = bad) -> torch.Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            (loss * float("nan") if bad else loss).backward()
            return loss

        if closure:
            optimizer.step(evaluate)  # type: ignore[arg-type] # torch wants a float of it
        else:
            evaluate()
            optimizer.step()
        assert all(p.grad is not None for p in model.parameters()), "given back"
        if not bad:
            reference.zero_grad()
            loss_of(twin, batch).backward()
            reference.step()
    guard.close()
    same_bits(model, twin)
    assert rows(tmp_path, "SELECT skipped FROM steps ORDER BY step") == [
        (False,), (False,), (True,), (False,), (False,),
    ]  # fmt: skip
    assert rows(tmp_path, "SELECT DISTINCT detector FROM alerts") == [("nonfinite_gradient",)]
    sound(guard)


def test_setups_policy_halt_decides_before_the_step_of_a_closure(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path, policy="halt")
    batch = batches(1)[0]

    def closure() -> torch.Tensor:
        loss = loss_of(model, batch)
        (loss * float("nan")).backward()
        return loss

    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TrainingHalted, match="non-finite"):
        optimizer.step(closure)  # type: ignore[arg-type] # torch wants a float of it
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])
    guard.close()


def test_setups_momentum_encoder_is_not_taken_for_corrupt(tmp_path: Path) -> None:
    """Frozen, and written to by the script after each step; another frozen layer stays at rest."""
    torch.manual_seed(0)
    model = nn.ModuleDict({name: nn.Linear(6, 3) for name in ("query", "key", "frozen")})
    for name in ("key", "frozen"):
        model[name].requires_grad_(False)
    optimizer = torch.optim.AdamW(model["query"].parameters(), lr=0.01)
    alerts: list[Alert] = []
    guard = attach(model, optimizer, tmp_path, on_alert=alerts.append, digest_budget=None)
    for step, batch in enumerate(batches(8)):
        loss_of(model["query"], batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for key, query in zip(
                model["key"].parameters(), model["query"].parameters(), strict=True
            ):
                key.mul_(0.9).add_(query, alpha=0.1)
            if step == 5:
                model["frozen"].weight[0, 0] += 1.0
    guard.close()
    assert [(alert.step, alert.layer_name, alert.severity) for alert in alerts] == [
        (6, "frozen.weight", "proven")
    ]
    told = rows(tmp_path, "SELECT detail FROM events WHERE kind = 'not carried'")
    assert told == [('{"written by the script": ["key.bias", "key.weight"]}',)]
    sound(guard)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # dynamo's own
def test_setups_compiled_optimizer_step(tmp_path: Path) -> None:
    model, twin = net(), net()
    data = batches(3)
    expected = []
    for one, recording in ((model, True), (twin, False)):
        optimizer = torch.optim.AdamW(one.parameters(), lr=0.01)
        guard = attach(one, optimizer, tmp_path) if recording else None
        step = torch.compile(optimizer.step, backend="eager")
        for batch in data:
            loss_of(one, batch).backward()
            if recording:
                expected.append(norms(one))
            step()
            optimizer.zero_grad()
        if guard:
            guard.close()
            sound(guard)
    equal(recorded(tmp_path), expected)
    same_bits(model, twin)


@pytest.mark.parametrize("policy", ["record", "skip", "halt"])
def test_setups_an_exception_inside_of_the_optimizers_step(tmp_path: Path, policy: str) -> None:
    """The step that it left is over; the next one is judged as its own."""
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path, policy=policy, digest_budget=None)
    fail = [False]

    def out_of_memory(*_: Any) -> None:
        if fail[0]:
            raise MemoryError

    optimizer.register_step_pre_hook(out_of_memory)
    expected = []
    halted = []
    for step, batch in enumerate(batches(6)):
        loss = loss_of(model, batch) * (float("nan") if step == 3 else 1.0)
        loss.backward()
        guard.observe(loss, batch)
        expected.append(norms(model))
        fail[0] = step == 2
        try:
            optimizer.step()
        except MemoryError:
            assert step == 2
        except TrainingHalted:
            halted.append(step)
        optimizer.zero_grad()
    guard.close()
    equal(recorded(tmp_path), expected)
    assert halted == ([3] if policy == "halt" else [])
    found = rows(tmp_path, "SELECT step, skipped FROM steps ORDER BY step")
    assert found == [(step, step == 3 and policy != "record") for step in range(6)]
    if policy != "record":
        assert all(torch.isfinite(p).all() for p in model.parameters())


def test_setups_a_batch_that_the_script_drops_is_not_the_next_ones(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    alerts: list[Alert] = []
    guard = attach(model, optimizer, tmp_path, policy="skip", on_alert=alerts.append)
    kept = []
    for number, batch in enumerate(batches(6)):
        loss = loss_of(model, batch) * (float("nan") if number == 3 else 1.0)
        loss.backward()
        guard.observe(loss, batch)
        if number == 3:
            optimizer.zero_grad()
            continue
        kept.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    assert alerts == []
    found = rows(tmp_path, "SELECT loss, accumulation, skipped, tokens FROM steps ORDER BY step")
    assert found == [(loss, 1, False, 16 * 6) for loss in kept]


def test_setups_a_working_folder_that_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, Path("runs/a"))
    train(model, optimizer, batches(2), guard)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    folder = guard.checkpoint({"model": model}, 1)
    guard.close()
    assert folder is not None
    assert folder.parent == tmp_path / "runs" / "a" / "archive"
    assert rows(tmp_path / "runs" / "a", "SELECT count(*) FROM steps") == [(2,)]
    sound(guard)


def test_setups_after_close_nothing_is_recorded_or_hooked(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path)
    train(model, optimizer, batches(2), guard)
    guard.close()
    guard.refresh()
    guard.observe(1.0)
    assert guard.checkpoint({"model": model}, 1) is None
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
    assert not (tmp_path / "archive").exists()
    sound(guard)


def test_setups_sparse_batches_have_a_hash(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    guard = attach(model, optimizer, tmp_path)
    for batch in batches(2):
        loss_of(model, batch).backward()
        guard.observe(1.0, [batch[0].to_sparse(), torch.empty(3, device="meta")])
        optimizer.step()
        optimizer.zero_grad()
    guard.close()
    assert rows(tmp_path, "SELECT count(DISTINCT batch_hash) FROM steps") == [(2,)]
    sound(guard)
