"""Parameters of every kind, and their gradients."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from training_parts import (
    attach,
    batches,
    equal,
    loss_of,
    net,
    recorded,
    rows,
    sound,
    train,
)

from sdc_guard import Alert, RunReader


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


@pytest.mark.parametrize("given", ["query", "all"])
def test_setups_momentum_encoder_is_not_taken_for_corrupt(tmp_path: Path, given: str) -> None:
    """Frozen, and written to by the script after each step; another frozen layer stays at rest."""
    torch.manual_seed(0)
    model = nn.ModuleDict({name: nn.Linear(6, 3) for name in ("query", "key", "frozen")})
    for name in ("key", "frozen"):
        model[name].requires_grad_(False)
    owned = model if given == "all" else model["query"]
    optimizer = torch.optim.AdamW(owned.parameters(), lr=0.01)
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
