"""The shadow pass leaves no trace: a model with every kind of state, before and after."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from sdc_guard.signals.kept_values import _changed as copied_back
from sdc_guard.signals.parameter_writes import ParameterWrites
from sdc_guard.signals.shadow import ShadowPass, unwrapped


class Stateful(nn.Module):
    """Dropout, batch norms (one frozen), a rebound buffer, counters, caches, generators."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.norm, self.frozen = nn.BatchNorm1d(4), nn.BatchNorm1d(4)
        self.frozen.eval()
        self.drop = nn.Dropout(0.5)
        self.register_buffer("ema", torch.zeros(4))
        self.calls = 0
        self.seen: list[int] = []
        self.cache: dict[str, torch.Tensor] = {"kept": torch.ones(2)}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen.append(self.calls)
        self.cache["last"] = x
        self.lazy = torch.ones(3)
        self.ema = self.ema * 0.9 + x.mean(0).detach()
        self.norm.train()  # even a model that flips its own modes
        noise = torch.rand(1) + random.random() + float(np.random.rand())
        return self.drop(self.frozen(self.norm(self.linear(x)))) * noise


class Restless(nn.Module):
    """Changes what hangs at it in place, wherever that is."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 1)
        self.register_buffer("steps", torch.tensor(-0.0))
        self.register_buffer("missing", None)
        self.plain = torch.zeros(3, dtype=torch.bfloat16)
        self.array = np.arange(3.0)
        self.queue: deque[torch.Tensor] = deque([torch.ones(1)], maxlen=2)
        self.counts: defaultdict[str, int] = defaultdict(int, a=1)
        self.nested = {"list": [1, 2, (np.zeros(2), {"deep": torch.zeros(2)})]}
        self.names = {"x"}
        self.generator = torch.Generator().manual_seed(3)
        self.python, self.numpy = random.Random(4), np.random.default_rng(5)
        self.legacy = np.random.RandomState(6)
        self.unregistered = [nn.BatchNorm1d(4)]
        self.me = [self]
        self.other = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 0.0  # −0 becomes 0: equal, but not the same bits
        self.missing = torch.ones(2)
        self.plain.add_(1)
        self.array += 1
        self.queue.extend([x, x])
        self.counts["b"] += 1
        self.counts.pop("a")
        self.nested["list"][2][0][1] = 7  # type: ignore[index] # because its items differ
        self.nested["list"][2][1]["deep"] += 1  # type: ignore[index] # because its items differ
        self.nested["list"].append(3)
        self.nested["new"] = []
        self.names.add("y")
        self.names.discard("x")
        x = self.unregistered[0].train()(x)
        self.other = nn.Linear(4, 4)
        self.extra = nn.Linear(4, 4)
        self.linear.weight = nn.Parameter(torch.zeros(1, 4))
        self.register_buffer("late", torch.ones(1))
        noise = torch.rand(1, generator=self.generator) + self.python.random()
        return self.linear(x) + noise + self.numpy.random() + self.legacy.rand()

    def everything(self) -> str:
        """All of its state as text, bits of tensors included."""
        torch.set_printoptions(precision=20)
        try:
            tensors = {
                name: (id(value), value.tolist(), torch.signbit(value).tolist())
                for name, value in [*self.named_buffers(), *self.named_parameters()]
            }
            parts = [
                tensors, dict(self._buffers), self.plain, self.array, list(self.queue),
                [id(item) for item in self.queue], list(self.counts.items()), self.nested,
                sorted(self.names), self.generator.get_state().tolist(), self.python.getstate(),
                self.numpy.bit_generator.state, self.legacy.get_state()[1].tolist(),
                self.unregistered[0].state_dict(), self.unregistered[0].training,
                [(name, id(module), module.training) for name, module in self.named_modules()],
                sorted(vars(self)),
            ]  # fmt: skip
            return "\n".join(map(repr, parts))
        finally:
            torch.set_printoptions(profile="default")


def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def test_nothing_that_a_forward_changes_stays_changed() -> None:
    model = Stateful()
    shadow = ShadowPass(torch.randn(8, 4), loss_fn)
    model(torch.randn(8, 4))  # a little history first
    buffers = dict(model.named_buffers())
    values = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    attributes = (model.calls, list(model.seen), dict(model.cache), model.lazy)
    generators = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state())

    result = shadow(model)

    assert result.losses[0] == result.losses[1]
    for name, buffer in model.named_buffers():
        assert buffer is buffers[name]
    for name, value in model.state_dict().items():
        assert torch.equal(value, values[name]), name
    assert [module.training for module in model.modules()] == modes
    assert (model.calls, model.seen, model.lazy) == (*attributes[:2], attributes[3])
    assert list(model.cache) == list(attributes[2])
    assert all(model.cache[name] is value for name, value in attributes[2].items())
    assert random.getstate() == generators[0]
    assert np.random.get_state()[1].tolist() == generators[1]
    assert torch.equal(torch.get_rng_state(), generators[2])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_an_attribute_made_by_the_pass_is_gone_after_it() -> None:
    model = Stateful()
    ShadowPass(torch.randn(8, 4), loss_fn)(model)
    assert not hasattr(model, "lazy")
    assert list(model.cache) == ["kept"]


def test_what_hangs_at_a_module_is_put_back_from_the_inside() -> None:
    model = Restless()
    shadow = ShadowPass(torch.randn(8, 4), loss_fn)
    objects = {name: id(value) for name, value in vars(model).items()}
    before = model.everything()
    result = shadow(model)
    assert model.everything() == before
    assert {name: id(value) for name, value in vars(model).items()} == objects
    assert result.losses[0] == result.losses[1]


def test_the_training_goes_on_as_if_nothing_had_been() -> None:
    def trained(shadow: bool) -> list[float]:
        torch.manual_seed(1)
        random.seed(2)
        np.random.seed(3)
        model = Stateful()
        optimizer = torch.optim.Adam(model.parameters())
        evaluate = ShadowPass(torch.linspace(-1, 1, 32).reshape(8, 4), loss_fn)
        losses = []
        for _ in range(4):
            loss = loss_fn(model, torch.randn(8, 4))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if shadow:
                evaluate(model)
            losses.append(loss.item())
        return losses

    assert trained(shadow=True) == trained(shadow=False)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_a_scripted_module_keeps_its_mode() -> None:
    model = nn.Sequential(torch.jit.script(nn.Dropout(0.5)), nn.Linear(4, 1))
    losses = ShadowPass(torch.ones(2, 4), loss_fn)(model).losses
    assert losses[0] == losses[1]
    assert [module.training for module in model.modules()] == [True] * 3


def test_a_class_that_merges_weights_in_eval_keeps_them_apart() -> None:
    class Merging(nn.Linear):
        def train(self, mode: bool = True) -> Merging:
            if not mode:
                with torch.no_grad():
                    self.weight += 1
            return super().train(mode)

    model = nn.Sequential(Merging(4, 1), nn.Dropout())
    weight = model[0].weight.clone()
    ShadowPass(torch.ones(2, 4), loss_fn)(model)
    assert torch.equal(model[0].weight, weight)


def test_a_graph_that_waits_for_its_backward_stays_valid() -> None:
    class Scaled(nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 4)
            self.register_buffer("scale", torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out = super().forward(x) * self.scale  # kept by the graph
            if not torch.is_grad_enabled():
                self.scale.mul_(2)
            return out

    def gradient(shadow: bool) -> torch.Tensor:
        torch.manual_seed(0)
        model = Scaled()
        loss = loss_fn(model, torch.ones(2, 4))
        if shadow:
            ShadowPass(torch.ones(2, 4), loss_fn)(model)
        loss.backward()
        assert model.weight.grad is not None
        return model.weight.grad

    assert torch.equal(gradient(shadow=True), gradient(shadow=False))


def test_what_is_written_to_parameters_is_seen_by_memory() -> None:
    flat = torch.arange(8.0)
    model = nn.Module()
    model.one, model.two = nn.Parameter(flat[:4]), nn.Parameter(flat[4:])
    model.apart = nn.Parameter(torch.ones(2, 3))
    cases: list[tuple[Callable[[], object], list[str]]] = [
        (lambda: model.one.data.mul_(2), ["one"]),
        (lambda: flat[4:6].zero_(), ["two"]),
        (lambda: flat.zero_(), ["one", "two"]),
        (lambda: torch._foreach_add_([model.apart.data, flat[:1]], 1.0), ["apart", "one"]),
        (lambda: torch.add(model.one, 1, out=flat[4:]), ["two"]),
        (lambda: model.apart.t()[1].copy_(torch.zeros(2)), ["apart"]),
        (lambda: (model.one + 1).mul_(2), []),
    ]
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    for write, expected in cases:
        with torch.no_grad(), ParameterWrites(model) as writes:
            write()
        assert writes.names == expected
        for name, value in model.named_parameters():
            assert torch.equal(value, before[name])


@pytest.mark.parametrize("wrap", ["ddp", "compiled", "compiled in parallel", "parallel compiled"])
def test_wrappers_are_taken_off(wrap: str) -> None:
    model = nn.Linear(4, 1)
    compiled = partial(torch.compile, backend="eager")
    wrapped = {
        "ddp": lambda: nn.DataParallel(model),
        "compiled": lambda: compiled(model),
        "compiled in parallel": lambda: nn.DataParallel(compiled(model)),
        "parallel compiled": lambda: compiled(nn.DataParallel(model)),
    }[wrap]()
    assert unwrapped(wrapped) is model


def test_a_loss_function_may_take_its_batch_apart() -> None:
    def greedy(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        labels = batch.pop("y")
        batch["x"].mul_(2)
        return (model(batch["x"]).flatten() - labels).square().mean()

    model = nn.Linear(4, 1)
    shadow = ShadowPass({"x": torch.ones(2, 4), "y": torch.ones(2)}, greedy)
    first = shadow(model)
    assert first.losses[0] == first.losses[1]
    assert torch.equal(shadow(model).losses, first.losses)


def test_a_model_with_an_attribute_named_module_is_evaluated_whole() -> None:
    class Wrapping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(4, 4)
            self.head = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.module(x))

    model = Wrapping()
    batch = torch.ones(2, 4)
    given: list[nn.Module] = []

    def noting(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        given.append(model)
        return loss_fn(model, batch)

    shadow = ShadowPass(batch, noting)
    assert shadow(model).losses[0] == loss_fn(model, batch).item()
    shadow(nn.DataParallel(model))  # its wrapper is taken off
    assert given == [model] * 5  # one pass more at first, to learn what it writes to


def test_one_thing_that_cannot_be_put_back_does_not_keep_the_others() -> None:
    class Locking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.array = np.zeros(2)
            self.calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            self.array[0] = 1
            self.array.setflags(write=False)
            return x * torch.rand(1)

    model = Locking()
    state = torch.get_rng_state()
    with pytest.raises(ValueError, match="read-only"):
        ShadowPass(torch.ones(2, 4), loss_fn)(model)
    assert model.calls == 0
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)


def test_a_buffer_that_grows_is_put_back() -> None:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("grows", torch.ones(2))
            self.register_buffer("moves", torch.ones(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.grows.resize_(1000).zero_()
            self.moves.data = torch.zeros(3)
            return x

    model = Growing()
    grows, moves = model.grows, model.moves
    ShadowPass(torch.ones(2, 4), loss_fn)(model)
    for buffer, now in ((grows, model.grows), (moves, model.moves)):
        assert now is buffer
        assert torch.equal(now, torch.ones(2))


def test_on_a_device_what_cannot_have_been_written_to_is_not_copied_back() -> None:
    one = torch.zeros(2, device="meta")  # values of a device are not compared
    assert copied_back(one, one, True)
    assert not copied_back(one, one, False)
    assert not copied_back(one[:1].expand(3), one, True)  # torch refuses to write to these
    assert copied_back(one[:1].expand(1), one, True)


def test_a_numpy_generator_of_another_kind_is_put_back() -> None:
    class Noisy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + float(np.random.rand())

    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(3))
    try:
        state = repr(np.random.get_state(legacy=False))
        ShadowPass(torch.ones(2, 4), loss_fn)(Noisy())
        assert repr(np.random.get_state(legacy=False)) == state
    finally:
        np.random.set_bit_generator(before)


def test_hooks_run_and_what_they_change_at_modules_is_put_back() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    kept_in_closure: list[torch.Tensor] = []

    def hook(module: nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
        module.last = output
        module.activations.append(output)
        kept_in_closure.append(output)
        return output + 1

    model[0].activations = []
    model[0].register_forward_hook(hook)
    batch = torch.ones(2, 4)
    losses = ShadowPass(batch, loss_fn)(model).losses
    assert model[0].activations == []
    assert not hasattr(model[0], "last")
    assert len(kept_in_closure) == 3  # what is said not to be seen
    assert losses[0] == loss_fn(model, batch).item()


def test_the_autocast_region_around_it_stays_in_force_and_its_cache_is_not_used() -> None:
    model = nn.Linear(4, 4)
    batch = torch.linspace(-1, 1, 8).reshape(2, 4)

    def autocast() -> torch.autocast:
        return torch.autocast("cpu", dtype=torch.bfloat16)

    with autocast():
        model(batch)  # casts of the weights as they are now are cached until the region ends
        with torch.no_grad():
            model.weight.mul_(2)
        losses = ShadowPass(batch, loss_fn)(model).losses
        assert torch.is_autocast_cache_enabled()
    with autocast():
        assert losses[0] == loss_fn(model, batch).item()
    assert losses[0] != loss_fn(model, batch).item()


def test_the_losses_are_exact() -> None:
    model = nn.Linear(4, 1)
    batch = torch.randn(3, 4)
    losses = ShadowPass(batch, loss_fn)(model).losses
    assert losses.dtype == torch.float64
    assert not losses.requires_grad
    assert losses[0] == loss_fn(model, batch).item()


def test_it_is_an_evaluation_without_gradients() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    batch, modes = torch.randn(3, 4), set()

    def noting(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        modes.add(torch.is_grad_enabled())
        return loss_fn(model, batch)

    losses = ShadowPass(batch, noting)(model).losses
    assert modes == {False}
    assert losses[0] == loss_fn(model.eval(), batch).item()


def test_the_batch_is_pinned() -> None:
    batch = torch.ones(8, 4)
    model = nn.Linear(4, 1)
    shadow = ShadowPass(batch, loss_fn)
    before = shadow(model).losses
    batch.zero_()
    assert torch.equal(shadow(model).losses, before)


def test_everything_is_put_back_when_the_loss_function_raises() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout())

    def broken(_: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        torch.rand(3)
        raise ValueError("no such column")

    state = torch.get_rng_state()
    with pytest.raises(ValueError, match="no such column"):
        ShadowPass(torch.ones(2, 4), broken)(model)
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
