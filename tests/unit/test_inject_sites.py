"""Each site: what is hit, when, and what sees it; against the same arithmetic written out."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from sdc_guard.digest.reference import words
from sdc_guard.inject.fault import Fault, InjectionRecord, Site, Touched
from sdc_guard.inject.injector import Injector, flip_bit


class Net(nn.Module):
    """One of everything that has tensors, and an output in a tuple."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(11, 4)
        self.lstm = nn.LSTM(4, 4, batch_first=True)
        self.norm = nn.BatchNorm1d(4)
        self.relu = nn.ReLU(inplace=True)
        self.out = nn.Linear(4, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mixed, _ = self.lstm(self.tokens(tokens))
        found: torch.Tensor = self.out(self.relu(self.norm(mixed[:, -1])))
        return found


def batch(step: int) -> torch.Tensor:
    return torch.randint(11, (5, 6), generator=torch.Generator().manual_seed(step))


def train(
    *faults: Fault, steps: int = 3, model: nn.Module | None = None, seed: int = 3, parts: int = 1,
    make: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW, **options: Any,
) -> tuple[Injector, dict[str, torch.Tensor]]:  # fmt: skip
    """Train with faults; the injector, and parameters, buffers and moments after it."""
    model = model or Net()
    optimizer = make(model.parameters())
    with Injector(model, optimizer, seed=seed, **options) as injector:
        for fault in faults:
            injector.add(fault)
        for step in range(steps):
            for part in range(parts):
                model(batch(100 * part + step)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    found = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    for name, parameter in model.named_parameters():
        for kind, value in optimizer.state[parameter].items():
            found[f"{kind} of {name}"] = value.clone()
    return injector, found


def differences(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> set[str]:
    return {name for name in one if not torch.equal(words(one[name]), words(other[name]))}


def only(injector: Injector) -> InjectionRecord:
    """The one record, of one word."""
    assert injector.missed == []
    (record,) = injector.records
    assert len(record.touched) == 1
    return record


ANYWHERE: list[Site] = [
    "weight", "buffer", "exp_avg", "exp_avg_sq", "step", "gradient", "reduced_gradient",
    "activation", "output_gradient", "batch",
]  # fmt: skip


@pytest.mark.parametrize("site", ANYWHERE)
def test_every_site_is_hit_once_and_the_same_for_the_same_seed(site: Site) -> None:
    state = torch.get_rng_state()
    first, one = train(Fault(site, 1))
    again, other = train(Fault(site, 1))
    record = only(first)
    assert (record.site, record.step, record.rank, record.seed) == (site, 1, 0, 3)
    assert again.records == first.records
    assert differences(one, other) == set()
    torch.manual_seed(0)
    assert {only(train(Fault(site, 1), seed=seed)[0]).touched for seed in range(4)} != {
        record.touched
    }
    torch.set_rng_state(state)


@pytest.mark.parametrize("site", ANYWHERE)
def test_without_its_step_a_fault_changes_nothing(site: Site) -> None:
    plain = train()[1]
    injector, found = train(Fault(site, 7), Fault(site, 0, rank=1))
    assert injector.records == []
    assert [missed.reason for missed in injector.missed] == [
        "the training ended before step 7 did",
        "there is no rank 1: one process trains",
    ]
    assert differences(plain, found) == set()


@pytest.mark.parametrize("options", [{}, {"foreach": True}, {"fused": True}], ids=str)
@pytest.mark.parametrize("site", ["exp_avg", "exp_avg_sq", "step"])
def test_the_state_of_every_implementation_of_adam(options: dict[str, bool], site: Site) -> None:
    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(parameters, **options)

    plain = train(make=make)[1]
    injector, found = train(Fault(site, 2, "out.weight", 0, bit=20), make=make)
    assert only(injector).tensor == "out.weight"
    kinds = {"exp_avg": {"exp_avg of out.weight"}, "exp_avg_sq": {"exp_avg_sq of out.weight"}}
    expected = kinds.get(site, {"step of out.weight"}) | {"out.weight"}
    assert differences(plain, found) == expected


def test_a_counter_of_steps_and_a_running_variance() -> None:
    plain = train()[1]
    injector, found = train(Fault("buffer", 2, "norm.num_batches_tracked", bit=40))
    assert only(injector).touched == (Touched(0, 2, 2 | 1 << 40),)
    assert differences(plain, found) == {"norm.num_batches_tracked"}
    # a negative variance is a NaN where it is used: shown, and not hidden
    model = Net()
    injector, found = train(Fault("buffer", 2, "norm.running_var", 0, change="set", value=-9.0),
                            model=model)  # fmt: skip
    assert only(injector).tensor == "norm.running_var"
    assert found["norm.running_var"][0] < 0
    assert torch.isnan(model.eval()(batch(0))).any()


# --- gradients


def gradients_at(site: Site, *hooks: Any) -> tuple[Touched, list[torch.Tensor], torch.Tensor]:
    """The gradient after backward and as the optimizer reads it, with clipping in between."""
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters())
    injector = Injector(model, optimizer, seed=0)
    injector.add(Fault(site, 0, "weight", 2, bit=30))
    read: list[torch.Tensor] = []
    optimizer.register_step_pre_hook(lambda *_: read.append(model.weight.grad.clone()))
    model(torch.ones(2, 4)).sum().backward()
    computed = model.weight.grad.clone()
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    clipped = model.weight.grad.clone()
    optimizer.step()
    injector.close()
    return only(injector).touched[0], [computed, clipped], read[0]


def test_a_gradient_is_hit_before_clipping_and_a_reduced_one_after() -> None:
    word, (computed, clipped), read = gradients_at("gradient")
    assert int(words(computed)[2]) == word.after
    assert word.before == int(words(torch.full((1,), 2.0))[0])
    assert torch.equal(read, clipped)
    word, (computed, clipped), read = gradients_at("reduced_gradient")
    assert torch.equal(computed, torch.full((3, 4), 2.0))
    assert int(words(clipped)[2]) == word.before
    assert int(words(read)[2]) == word.after
    assert differences({"": clipped}, {"": read}) == {""}


def test_a_reduced_gradient_of_a_closure_is_hit_after_it_ran() -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    before = model.weight.detach().clone()
    with Injector(model, optimizer, seed=0) as injector:
        injector.add(Fault("reduced_gradient", 0, "weight", 2, change="zero"))

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    assert not only(injector).masked
    moved = (before - model.weight.detach()).flatten() == 0
    assert moved.nonzero().flatten().tolist() == [2]


def test_accumulation_hits_the_first_backward() -> None:
    for site in ("activation", "gradient", "output_gradient", "batch", "weight"):
        injector, _ = train(Fault(site, 1), parts=3)
        assert only(injector).step == 1


# --- outputs


def through_tanh(effect: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """tanh with one wrong element: what came out, the gradient of what went in, the factors."""
    model = nn.Sequential(nn.Tanh())
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    x = torch.linspace(-1, 1, 6).requires_grad_()
    factors = torch.arange(1.0, 7.0)
    with Injector(model, optimizer, seed=0) as injector:
        injector.add(
            Fault("activation", 0, "0", 4, change="set", value=0.25, effect=effect)  # type: ignore[arg-type] # because it is a parameter of the test
        )
        y = model(x)
        (y * factors).sum().backward()
    assert only(injector).touched[0].index == 4
    assert x.grad is not None
    return y.detach(), x.grad, factors


def test_a_wrong_result_leaves_what_the_backward_saved_and_wrong_memory_does_not() -> None:
    sound = torch.tanh(torch.linspace(-1, 1, 6))
    wrong = sound.clone()
    wrong[4] = 0.25
    y, gradient, factors = through_tanh("compute")
    assert torch.equal(y, wrong)
    torch.testing.assert_close(gradient, factors * (1 - sound * sound))
    y, gradient, factors = through_tanh("memory")
    assert torch.equal(y, wrong)
    torch.testing.assert_close(gradient, factors * (1 - wrong * wrong))


@pytest.mark.parametrize("effect", ["compute", "memory"])
def test_the_gradient_of_an_output(effect: Any) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(inplace=True))
    sound, x = copy.deepcopy(model), torch.randn(5, 4)
    optimizer = torch.optim.SGD(model.parameters())
    with Injector(model, optimizer, seed=0) as injector:
        injector.add(Fault("output_gradient", 0, "0", (2, 1), bit=31, effect=effect))
        model(x).square().sum().backward()
    record = only(injector)
    assert record.touched[0].index == 7
    out = sound[0](x)
    out.retain_grad()
    torch.relu(out).square().sum().backward()
    gradient = out.grad.clone()
    assert int(words(gradient)[7]) == record.touched[0].before
    flip_bit(gradient, 7, 31)
    assert torch.equal(model[0].bias.grad, gradient.sum(0))
    assert torch.equal(model[0].weight.grad, gradient.T @ x)


def test_the_memory_of_a_gradient_is_shared_and_a_result_is_not() -> None:
    for effect, sound in (("compute", True), ("memory", False)):
        model = nn.Sequential(nn.Linear(4, 3))
        factors, other = torch.arange(1.0, 4.0), torch.ones(3, requires_grad=True)
        with Injector(model, torch.optim.SGD(model.parameters()), seed=0) as injector:
            injector.add(Fault("output_gradient", 0, "0", 1, change="zero", effect=effect))  # type: ignore[arg-type] # because mypy sees a str
            beside = other * 1
            # both terms are given the same tensor as their gradient
            ((model(torch.ones(4)) + beside) * factors).sum().backward()
        assert only(injector).touched[0].after == 0
        assert model[0].bias.grad.tolist() == [1.0, 0.0, 3.0]
        assert other.grad.tolist() == [1.0, 2.0 if sound else 0.0, 3.0]


def test_outputs_in_tuples_and_mappings_are_named_by_their_place() -> None:
    class Told(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, Any]:
            return {"ids": torch.arange(3), "a": x + 1, "more": [x + 2, (x + 3,)]}

    for target, name, place in (("0", "0:0", 0), ("0:2", "0:2", 2), ("*:1", "0:1", 1)):
        model = nn.Sequential(Told())
        optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
        with Injector(model, optimizer, seed=0) as injector:
            injector.add(Fault("activation", 0, target, 1, change="zero"))
            found = model(torch.ones(2))
        values = [found["a"], found["more"][0], found["more"][1][0]]
        assert only(injector).tensor == name
        assert [value.tolist()[1] for value in values] == [
            0.0 if number == place else number + 2.0 for number in range(3)
        ]
        assert type(found["more"][1]) is tuple
    injector, _ = train(Fault("activation", 1, "lstm"))
    assert only(injector).tensor == "lstm:0"
    injector, _ = train(Fault("activation", 1, "lstm:7"))
    assert "lstm returns 3 floating-point tensors" in injector.missed[0].reason


def test_a_recomputed_forward_is_sound_and_a_persistent_fault_is_in_it() -> None:
    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = nn.Sequential(nn.Linear(4, 4), nn.Tanh())

        def forward(self, x: torch.Tensor) -> Any:
            return checkpoint(self.part, x, use_reentrant=False)

    for recurrence, count in (("once", 1), ("persistent", 2)):
        model = Recomputed()
        optimizer = torch.optim.SGD(model.parameters())
        with Injector(model, optimizer, seed=0) as injector:
            injector.add(Fault("activation", 0, "part.0", recurrence=recurrence))  # type: ignore[arg-type] # because mypy sees a str
            model(torch.ones(2, 4, requires_grad=True)).sum().backward()
        assert len(injector.records) == count


# --- batches


def test_token_ids_stay_in_the_vocabulary_and_the_callers_batch_as_it_is() -> None:
    seen: list[torch.Tensor] = []
    model = Net()
    model.tokens.register_forward_pre_hook(lambda _, args: seen.append(args[0].clone()))
    injector, _ = train(Fault("batch", 1, index=(4, 5), bit=62), model=model)
    record = only(injector)
    assert "kept below 11" in record.note
    (word,) = record.touched
    assert (word.index, word.before) == (29, int(batch(1)[4, 5]))
    assert word.after == (word.before + 2**62) % 11
    expected = batch(1)
    expected[4, 5] = word.after
    assert torch.equal(seen[1], expected)


def test_keywords_and_memory_that_the_caller_shares() -> None:
    class Sum(nn.Module):
        def forward(self, x: torch.Tensor, *, extra: dict[str, torch.Tensor]) -> torch.Tensor:
            return x + extra["more"]

    model = Sum()
    more = torch.ones(3)
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    with Injector(model, optimizer, seed=0) as injector:
        injector.add(Fault("batch", 0, "extra.*", 1, change="zero"))
        injector.add(Fault("batch", 0, "0", 2, change="zero", effect="memory"))
        x = torch.ones(3)
        assert model(x, extra={"more": more}).tolist() == [2.0, 1.0, 1.0]
    assert (more.tolist(), x.tolist()) == ([1.0] * 3, [1.0, 1.0, 0.0])
    assert [record.tensor for record in injector.records] == ["extra.more", "0"]


# --- the training's own things


@pytest.mark.parametrize("how", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_of_the_model_is_not_hit(how: Callable[[nn.Module], nn.Module]) -> None:
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters())
    with Injector(model, optimizer, seed=0) as injector:
        for site in ("weight", "activation", "batch", "output_gradient"):
            injector.add(Fault(site, 0))
        copied = how(model)
        copied(batch(0)).sum().backward()
        assert injector.records == []
        model(batch(0)).sum().backward()
        assert len(injector.records) == 4


def test_what_is_reverted_is_as_it_was_and_what_was_written_to_since_is_left() -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    sound = model.weight.detach().clone()
    injector = Injector(model, optimizer, seed=0)
    injector.add(Fault("weight", 0, "weight", 1, bit=3)).add(Fault("weight", 0, "weight", 1, bit=4))
    injector.add(Fault("weight", 0, "bias", 2, change="zero")).add(Fault("activation", 0, ""))
    model(torch.ones(1, 4)).sum().backward()
    assert not torch.equal(model.weight, sound)
    with torch.no_grad():
        model.bias[2] = 5.0
    ((record, left),) = injector.revert()
    assert torch.equal(words(model.weight.detach()), words(sound))
    assert (record.tensor, left) == ("bias", (2,))
    assert model.bias[2] == 5
    injector.close()
