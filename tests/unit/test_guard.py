"""The guard on small real trainings."""

from __future__ import annotations

import copy
import errno
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from sdc_guard import Alert, Guard, RunReader, TrainingHalted, load_checkpoint
from sdc_guard.errors import CheckpointMismatch, UsageError
from sdc_guard.inject.injector import flip_bit


class Training:
    """A small classifier under AdamW, with or without a guard."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.ReLU(), nn.Linear(16, 4))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.guard: Guard | None = None

    def step(self) -> None:
        batch = (torch.randn(32, 8), torch.randint(0, 4, (32,)))
        loss = nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        loss.backward()
        if self.guard:
            self.guard.observe(loss, batch)
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()


_GUARDS: list[Guard] = []


@pytest.fixture(autouse=True)
def _close_guards() -> Iterator[None]:
    yield
    while _GUARDS:
        _GUARDS.pop().close()


def guarded(folder: Path, **options: object) -> Training:
    training = Training()
    batch = (torch.ones(4, 8), torch.tensor([0, 1, 2, 3]))

    def loss_fn(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(model(batch[0]), batch[1])

    training.guard = Guard(
        training.model,
        training.optimizer,
        run=folder,
        shadow=(batch, loss_fn),
        shadow_every=3,
        digest_budget=None,
        policy=options.pop("policy", "record"),
        **options,  # type: ignore[arg-type] # because the options of the tests are the guard's
    )
    _GUARDS.append(training.guard)
    return training


def test_every_step_is_recorded_with_the_values_of_the_training(tmp_path: Path) -> None:
    training = guarded(tmp_path)
    assert training.guard is not None
    torch.manual_seed(5)
    training.steps(9)
    training.guard.close()
    twin = Training()
    torch.manual_seed(5)
    losses, norms = [], []
    for _ in range(9):
        batch = (torch.randn(32, 8), torch.randint(0, 4, (32,)))
        loss = nn.functional.cross_entropy(twin.model(batch[0]), batch[1])
        loss.backward()
        losses.append(float(loss.detach()))
        norms.append(float(nn.utils.clip_grad_norm_(twin.model.parameters(), 0.1)))
        twin.optimizer.step()
        twin.optimizer.zero_grad()
    with RunReader(tmp_path) as reader:
        rows = reader.rows("SELECT step, loss, lr, grad_norm FROM steps ORDER BY step")
        assert [row[0] for row in rows] == list(range(9))
        assert [row[1] for row in rows] == losses
        assert {row[2] for row in rows} == {0.01}
        assert [row[3] for row in rows] == pytest.approx(norms, rel=1e-6)  # before clipping
        hashes = reader.rows("SELECT count(DISTINCT batch_hash) FROM steps")
        assert hashes == [(9,)]
        assert reader.rows("SELECT step FROM shadow ORDER BY step") == [(0,), (3,), (6,)]
        assert reader.rows("SELECT count(*) FROM shadow WHERE loss <> repeat_loss") == [(0,)]
        # two phases of nine steps: four parameters, and from the first update on two moments each
        assert reader.rows("SELECT count(*) FROM digests") == [(9 * 2 * 12 - 8,)]
    assert training.guard.health.errors == 0


def test_the_bits_are_those_of_the_unguarded_training(tmp_path: Path) -> None:
    one, two = guarded(tmp_path), Training()
    for training in (one, two):
        torch.manual_seed(9)
        training.steps(20)
    for a, b in zip(one.model.parameters(), two.model.parameters(), strict=True):
        assert torch.equal(a.view(torch.int32), b.view(torch.int32))
    assert torch.equal(torch.get_rng_state(), torch.get_rng_state())


@pytest.mark.parametrize("site", ["param", "exp_avg", "exp_avg_sq"])
@pytest.mark.parametrize("bit", [0, 13, 30, 31])
def test_a_bit_at_rest_is_told_in_the_same_step(tmp_path: Path, site: str, bit: int) -> None:
    alerts: list[Alert] = []
    training = guarded(tmp_path, on_alert=alerts.append)
    training.steps(5)
    weight = training.model[3].weight
    tensor = weight.data if site == "param" else training.optimizer.state[weight][site]
    before, after = flip_bit(tensor, 21, bit)
    training.step()
    (alert,) = [alert for alert in alerts if alert.detector == "carried_digest"]
    assert (alert.step, alert.layer_name, alert.severity) == (5, "3.weight", "proven")
    assert alert.detail["kind"] == site
    assert (alert.detail["index"], alert.detail["bits"]) == (21, [bit])
    assert (alert.detail["before"], alert.detail["after"]) == (f"0x{before:x}", f"0x{after:x}")
    training.step()
    assert [alert.step for alert in alerts if alert.detector == "carried_digest"] == [5]


def test_two_changed_elements_are_named_as_a_tensor_only(tmp_path: Path) -> None:
    alerts: list[Alert] = []
    training = guarded(tmp_path, on_alert=alerts.append)
    training.steps(3)
    for index in (3, 50):
        flip_bit(training.model[0].weight.data, index, 9)
    training.step()
    (alert,) = alerts
    assert alert.layer_name == "0.weight"
    assert "index" not in alert.detail


def test_a_change_that_the_script_declares_is_no_alert(tmp_path: Path) -> None:
    alerts: list[Alert] = []
    training = guarded(tmp_path, on_alert=alerts.append)
    training.steps(3)
    with torch.no_grad():
        training.model[0].weight.clamp_(-0.1, 0.1)
    assert training.guard is not None
    training.guard.refresh()
    training.steps(3)
    assert alerts == []


def test_a_shadow_pass_that_fails_once_accuses_nothing(tmp_path: Path) -> None:
    alerts: list[Alert] = []
    training, calls = Training(), []

    def loss_fn(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        if len(calls) == 3:
            raise RuntimeError("the held-out data is gone")
        return model(batch).sum()

    training.guard = Guard(
        training.model,
        training.optimizer,
        run=tmp_path,
        shadow=(torch.ones(2, 8), loss_fn),
        shadow_every=2,
        policy="record",
        on_alert=alerts.append,
    )
    _GUARDS.append(training.guard)
    training.steps(9)
    assert alerts == []
    assert "the held-out data is gone" in training.guard.health.last_error


def test_another_optimizers_parameters_are_not_ours_to_judge(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2))
    model[2].requires_grad_(False)
    one = torch.optim.Adam(model[0].parameters())
    two = torch.optim.Adam(model[1].parameters())
    alerts: list[Alert] = []
    guard = Guard(
        model, one, run=tmp_path, policy="record", on_alert=alerts.append, digest_budget=None
    )
    _GUARDS.append(guard)
    for _ in range(5):
        model(torch.randn(8, 4)).square().mean().backward()
        for optimizer in (one, two):
            optimizer.step()
            optimizer.zero_grad()
    assert alerts == []
    flip_bit(model[2].weight.data, 1, 3)  # frozen, and so nobody's to change
    model(torch.randn(8, 4)).square().mean().backward()
    one.step()
    assert [alert.layer_name for alert in alerts] == ["2.weight"]


def test_an_embedding_that_renormalises_itself_is_no_corruption(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(20, 4, max_norm=0.5), nn.Linear(4, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    alerts: list[Alert] = []
    guard = Guard(
        model, optimizer, run=tmp_path, policy="record", on_alert=alerts.append, digest_budget=None
    )
    _GUARDS.append(guard)
    for _ in range(5):
        model(torch.randint(0, 20, (8,))).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert alerts == []
    guard.close()
    with RunReader(tmp_path) as reader:
        ((detail,),) = reader.rows("SELECT detail FROM events WHERE kind = 'not carried'")
    assert json.loads(detail) == {"written by forward": ["0.weight"]}


def test_a_lazy_parameter_is_refused_in_one_line(tmp_path: Path) -> None:
    model = nn.Sequential(nn.LazyLinear(4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UsageError, match="has no shape yet"):
        Guard(model, optimizer, run=tmp_path)


def test_a_run_folder_that_vanishes_is_told(tmp_path: Path) -> None:
    training = guarded(tmp_path / "run")
    training.steps(2)
    assert training.guard is not None
    assert training.guard.flush()
    shutil.rmtree(tmp_path / "run")
    training.steps(2)
    assert not training.guard.flush()
    assert "is gone" in training.guard.health.last_error


def test_halt_raises_before_the_step_is_applied(tmp_path: Path) -> None:
    training = guarded(tmp_path, policy="halt")
    training.steps(3)
    flip_bit(training.model[0].weight.data, 3, 9)
    kept = training.model[0].weight.detach().clone()
    with pytest.raises(TrainingHalted, match=r"step 3: carried_digest in 0\.weight"):
        training.step()
    assert torch.equal(training.model[0].weight, kept)


def test_warn_tells_through_logging(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    training = guarded(tmp_path, policy="warn")
    training.steps(2)
    flip_bit(training.model[0].weight.data, 3, 9)
    with caplog.at_level(logging.WARNING, logger="sdc_guard"):
        training.step()
    assert "step 2: carried_digest in 0.weight" in caplog.text


def test_a_callback_that_raises_does_not_reach_the_training(tmp_path: Path) -> None:
    def broken(_: Alert) -> None:
        raise RuntimeError("the pager is down")

    training = guarded(tmp_path, on_alert=broken)
    training.steps(2)
    flip_bit(training.model[0].weight.data, 3, 9)
    training.steps(2)
    assert training.guard is not None
    assert "the pager is down" in training.guard.health.last_error


def test_checkpoints_are_clean_and_load_to_the_same_bits(tmp_path: Path) -> None:
    training = guarded(tmp_path)
    training.steps(4)
    assert training.guard is not None
    objects = {"model": training.model, "optimizer": training.optimizer, "epoch": 2}
    folder = training.guard.checkpoint(objects, 3)
    assert folder is not None
    assert (tmp_path / "archive" / "LATEST").read_text().strip() == folder.name
    assert json.loads((folder / "manifest.json").read_text())["status"] == "clean"
    saved = load_checkpoint(folder)
    assert (saved["step"], saved["epoch"]) == (3, 2)
    for name, tensor in training.model.state_dict().items():
        assert torch.equal(saved["model"][name], tensor)


def test_a_change_between_step_and_save_makes_the_checkpoint_suspect(tmp_path: Path) -> None:
    training = guarded(tmp_path)
    training.steps(4)
    flip_bit(training.model[3].weight.data, 7, 2)
    assert training.guard is not None
    folder = training.guard.checkpoint({"model": training.model}, 3)
    assert folder is not None
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["status"] == "suspect"
    assert manifest["reasons"] == [
        "model.3.weight: bytes differ from the recorded digest (element 7, bits [2])"
    ]
    with pytest.raises(CheckpointMismatch, match=r"model\.3\.weight"):
        load_checkpoint(folder)


def test_a_weight_that_is_not_finite_makes_the_checkpoint_suspect(tmp_path: Path) -> None:
    """The gradient was spoiled after its backward, where no norm has seen it."""
    training = guarded(tmp_path)
    training.steps(3)
    training.model(torch.ones(4, 8)).sum().backward()
    assert isinstance(training.model[3].weight.grad, torch.Tensor)
    training.model[3].weight.grad[0, 0] = float("nan")
    training.optimizer.step()
    assert training.guard is not None
    folder = training.guard.checkpoint({"model": training.model}, 3)
    assert folder is not None
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["status"] == "suspect"
    incident, values = manifest["reasons"]
    assert "shadow_nonfinite" in incident
    assert values == "not finite: 3.weight param, 3.weight exp_avg, 3.weight exp_avg_sq"


def test_a_frozen_mask_of_infinities_is_no_reason_for_doubt(tmp_path: Path) -> None:
    model = nn.Linear(3, 2)
    model.mask = nn.Parameter(torch.full((2,), float("-inf")), requires_grad=False)
    optimizer = torch.optim.AdamW(model.parameters())
    with Guard(model, optimizer, run=tmp_path) as guard:
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        folder = guard.checkpoint({"model": model, "optimizer": optimizer}, 0)
    assert folder is not None
    assert json.loads((folder / "manifest.json").read_text())["status"] == "clean"


def test_a_step_number_that_is_not_the_traces_makes_it_suspect(tmp_path: Path) -> None:
    training = guarded(tmp_path)
    training.steps(4)
    assert training.guard is not None
    folder = training.guard.checkpoint({"model": training.model}, 4)
    assert folder is not None
    (reason,) = json.loads((folder / "manifest.json").read_text())["reasons"]
    assert reason.startswith("labelled step 4, but the trace is at step 3")


def test_a_checkpoint_that_cannot_be_written_is_told_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = guarded(tmp_path)
    assert training.guard is not None
    training.steps(2)
    first = training.guard.checkpoint({"model": training.model}, 1)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    training.step()
    assert training.guard.checkpoint({"model": training.model}, 2) is None
    assert "No space left" in training.guard.health.last_error
    training.step()
    assert first is not None
    assert (tmp_path / "archive" / "LATEST").read_text().strip() == first.name
    assert [path.name for path in (tmp_path / "archive").glob("*step*")] == [first.name]


def test_a_copied_model_trains_without_recording(tmp_path: Path) -> None:
    training = guarded(tmp_path)
    training.steps(2)
    twin = copy.deepcopy(training.model)
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.1)
    twin(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    assert training.guard is not None
    training.guard.close()
    with RunReader(tmp_path) as reader:
        assert reader.rows("SELECT count(*) FROM steps") == [(2,)]


def test_detached_after_close(tmp_path: Path) -> None:
    training = guarded(tmp_path)
    training.steps(2)
    assert training.guard is not None
    training.guard.close()
    training.guard.close()
    training.guard = None
    training.steps(2)
    with RunReader(tmp_path) as reader:
        assert reader.rows("SELECT count(*) FROM steps") == [(2,)]
    assert not training.optimizer._optimizer_step_pre_hooks


def test_accumulation_is_one_row_with_the_mean_loss(tmp_path: Path) -> None:
    training = guarded(tmp_path)
    assert training.guard is not None
    losses = []
    for number in range(4):
        loss = training.model(torch.full((2, 8), float(number))).square().mean()
        loss.backward()
        losses.append(float(loss.detach()))
        training.guard.observe(loss, torch.full((2, 8), float(number)))
    total = float(torch.cat([p.grad.reshape(-1) for p in training.model.parameters()]).norm())  # type: ignore[union-attr] # because every parameter has a gradient here
    training.optimizer.step()
    training.guard.close()
    with RunReader(tmp_path) as reader:
        ((accumulation, loss_mean, norm, tokens),) = reader.rows(
            "SELECT accumulation, loss, grad_norm, tokens FROM steps"
        )
    assert accumulation == 4
    assert loss_mean == pytest.approx(sum(losses) / 4, rel=1e-6)
    assert norm == pytest.approx(total, rel=1e-6)
    assert tokens == 64


@pytest.mark.parametrize(
    "options",
    [
        {"policy": "explode"},
        {"first_step": -1},
        {"first_step": "0"},
        {"audit_rate": "x"},
        {"audit_rate": 2},
        {"replicas_every": 1.5},
        {"probe_every": 0},
        {"audit": 1},
        {"on_alert": 3},
        {"ledger": 5},
        {"ledger": ""},
        {"overlap_digests": "yes"},
        {"digest_gradients": 2},
    ],
)
def test_options_that_cannot_be_right(tmp_path: Path, options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=next(iter(options))):
        guarded(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "value"), [("run", ""), ("run", None), ("shadow", 3), ("digest_budget", "all")]
)
def test_arguments_that_cannot_be_right(tmp_path: Path, name: str, value: object) -> None:
    training = Training()
    options: dict[str, object] = {"run": tmp_path / "run"} | {name: value}
    with pytest.raises(UsageError, match=name):
        Guard(training.model, training.optimizer, **options)  # type: ignore[arg-type] # on purpose
    assert not (tmp_path / "run").exists()
