"""Lightning's Trainer, as installed, with a guard as its callback."""

from __future__ import annotations

import copy
import importlib
import math
import pickle
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.plugins import MixedPrecision
from recorded import (
    another_scaler,
    by_hand,
    close,
    example,
    gradient_norm,
    rows,
    sum_of_bits,
    sums_of_bits,
)

from sdc_guard import RunReader, TrainingHalted
from sdc_guard.integrations.lightning import SdcGuardCallback

pytestmark = [
    # of Lightning: advice for a larger training, and what torch has renamed since
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory:UserWarning"),
]
STEPS = 4


class Net(torch.nn.Module):
    """A small regression, its weights always the same."""

    def __init__(self, width: int = 7, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(5, width),
            torch.nn.Tanh(),
            torch.nn.Dropout(dropout),
            torch.nn.Linear(width, 1),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def net_loss(net: torch.nn.Module, batch: list[torch.Tensor]) -> torch.Tensor:
    """The mean squared error, in the precision of the net."""
    x, y = (value.to(next(net.parameters()).dtype) for value in batch)
    return torch.nn.functional.mse_loss(net(x), y)


def line_of(base: Any) -> Any:
    """The LightningModule of this test, of either package."""

    class Line(base):
        def __init__(self, dropout: float = 0.0) -> None:
            super().__init__()
            self.net = Net(dropout=dropout)
            self.before: list[dict[str, torch.Tensor]] = []
            self.fails_at = -1

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            if self.global_step == len(self.before):  # the first micro-batch of a step
                self.before.append(copy.deepcopy(self.net.state_dict()))
            if self.global_step == self.fails_at:
                raise RuntimeError("out of patience")
            return net_loss(self.net, batch)

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.net.parameters(), lr=1e-2)

    return Line


Line = line_of(pl.LightningModule)


class Duel(pl.LightningModule):
    """Two nets and two optimizers, stepped by manual optimization; the second every other time."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.first, self.second = Net(7), Net(3)
        self.before: list[list[dict[str, torch.Tensor]]] = [[], []]

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for number, net in enumerate([self.first, self.second]):
            optimizer = self.optimizers()[number]
            if number and batch_idx % 2:
                continue
            self.before[number].append(copy.deepcopy(net.state_dict()))
            optimizer.zero_grad()
            self.manual_backward(net_loss(net, batch))
            optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.AdamW(net.parameters(), lr=1e-2) for net in (self.first, self.second)]


def data(batches: int) -> list[list[torch.Tensor]]:
    """Batches of two samples."""
    generator = torch.Generator().manual_seed(1)
    return [list(torch.randn((2, 6), generator=generator).split([5, 1], 1)) for _ in range(batches)]


def loader(batches: list[list[torch.Tensor]]) -> torch.utils.data.DataLoader[Any]:
    return torch.utils.data.DataLoader(batches, batch_size=None)


def trainer_of(folder: Path, *callbacks: Any, package: Any = pl, **options: Any) -> Any:
    defaults: dict[str, Any] = {
        "max_steps": STEPS, "accelerator": "cpu", "devices": 1, "logger": False,
        "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    return package.Trainer(
        default_root_dir=folder, callbacks=list(callbacks), **{**defaults, **options}
    )


@pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])
def test_setups_lightning_values_are_those_of_plain_torch_before_clipping(
    name: str, tmp_path: Path
) -> None:
    package = importlib.import_module(name)
    home = name.rpartition("lightning.pytorch")[2] or "lightning"
    integration = importlib.import_module(f"sdc_guard.integrations.{home}")
    callback = integration.SdcGuardCallback(tmp_path / "run", policy="record")
    assert isinstance(callback, package.Callback)
    module, batches = line_of(package.LightningModule)(), data(STEPS)
    trainer = trainer_of(tmp_path, callback, package=package, gradient_clip_val=1e-6)
    trainer.fit(module, loader(batches))
    expected = by_hand(Net(), module.before, [[batch] for batch in batches], net_loss)
    assert rows(tmp_path / "run", "loss, grad_norm") == close(expected)
    assert rows(tmp_path / "run", "step, accumulation") == [(n, 1) for n in (1, 2, 3, 4)]
    assert len({hash_ for (hash_,) in rows(tmp_path / "run", "batch_hash")} - {None}) == STEPS
    assert callback.guards[0].health.errors == 0


def test_setups_lightning_accumulation(tmp_path: Path) -> None:
    # Lightning steps at the end of an epoch, with what is there by then
    module, batches = Line(), data(5)
    callback = SdcGuardCallback(tmp_path / "run", policy="record")
    trainer_of(tmp_path, callback, accumulate_grad_batches=2).fit(module, loader(batches))
    one, two, three, four, five = batches
    expected = by_hand(
        Net(),
        module.before,
        [[one, two], [three, four], [five], [one, two]],
        net_loss,
        divisor=2,
    )
    assert rows(tmp_path / "run", "loss, grad_norm") == close(expected)
    assert rows(tmp_path / "run", "accumulation") == [(2,), (2,), (1,), (2,)]


@pytest.mark.parametrize("clip", [None, 1e-6])
def test_setups_lightning_in_mixed_precision_with_a_scaler(
    clip: float | None, tmp_path: Path
) -> None:
    # precision="16-mixed" makes bf16 of it on a CPU; its plugin does float16 there, with a scaler
    batches, scale = data(STEPS), 2.0**8
    batches[0][1] *= 1e5  # its gradient is no float16 in step 1
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=scale))
    callback = SdcGuardCallback(tmp_path / "run", policy="record")
    module = Line()
    trainer = trainer_of(tmp_path, callback, plugins=[plugin], gradient_clip_val=clip)
    other = another_scaler()
    trainer.fit(module, loader(batches))
    assert (plugin.scaler.get_scale(), other.get_scale()) == (scale / 2, 2.0**16)
    run = tmp_path / "run"
    assert rows(run, "step, skipped") == [(1, True), (2, False), (3, False), (4, False)]
    scales = [scale, scale / 2, scale / 2, scale / 2]
    expected = [in_float16(*step) for step in zip(module.before, batches, scales, strict=True)]
    recorded = rows(run, "loss, grad_norm")
    assert recorded[0][0] == pytest.approx(expected[0][0])
    del recorded[0], expected[0]
    assert recorded == close(expected)


def in_float16(
    weights: dict[str, torch.Tensor], batch: list[torch.Tensor], scale: float
) -> tuple[float, float]:
    """Loss and gradient norm by plain torch, without the scale."""
    net = Net()
    net.load_state_dict(weights)
    with torch.autocast("cpu", dtype=torch.float16, cache_enabled=False):
        loss = net_loss(net, batch)
    (loss * scale).backward()
    return loss.item(), gradient_norm(net.parameters()) / scale


def test_setups_lightning_loss_that_is_nan(tmp_path: Path) -> None:
    batches = data(STEPS)
    batches[3][1].fill_(math.nan)
    callback = SdcGuardCallback(tmp_path / "run", policy="record")
    trainer_of(tmp_path, callback).fit(Line(), loader(batches))
    finite = [math.isfinite(loss) for (loss,) in rows(tmp_path / "run", "loss")]
    assert finite == [True, True, True, False]
    assert {step for (step,) in rows(tmp_path / "run", "step", "alerts")} == {4}


def test_setups_lightning_bits_and_generator_are_the_same_with_and_without(tmp_path: Path) -> None:
    ends = []
    for callbacks in ([], [SdcGuardCallback(tmp_path / "run")]):
        module = Line(dropout=0.3)
        torch.manual_seed(1)
        trainer = trainer_of(tmp_path, *callbacks, accumulate_grad_batches=2)
        trainer.fit(module, loader(data(8)))
        moments = trainer.optimizers[0].state_dict()["state"].values()
        tensors = [*module.state_dict().values(), torch.get_rng_state()]
        tensors += [value for of_one in moments for value in of_one.values()]
        ends.append([tensor.numpy().tobytes() for tensor in tensors])
    assert len(ends[0]) == 4 + 1 + 4 * 3  # parameters, generator, step and moments of each
    assert ends[0] == ends[1]
    assert rows(tmp_path / "run", "step") == [(1,), (2,), (3,), (4,)]


def test_setups_lightning_checkpoint_n_is_what_guard_step_n_left_behind_also_after_a_resume(
    tmp_path: Path,
) -> None:
    def fit(resume: Path | None) -> None:
        saving = pl.callbacks.ModelCheckpoint(
            tmp_path, "{step}", save_top_k=-1, every_n_train_steps=1, enable_version_counter=False
        )
        callback = SdcGuardCallback(tmp_path / "run", digest_budget=None)
        trainer = trainer_of(tmp_path, callback, saving, enable_checkpointing=True)
        # two batches an epoch: Lightning resumes exactly between epochs only
        trainer.fit(Line(), loader(data(2)), ckpt_path=resume)

    def sums(step: int) -> dict[str, int]:
        weights = torch.load(tmp_path / f"step={step}.ckpt", weights_only=True)["state_dict"]
        return {name: sum_of_bits(tensor) for name, tensor in weights.items()}

    fit(None)
    once = sums(4)
    fit(tmp_path / "step=2.ckpt")
    assert rows(tmp_path / "run", "step, attempt") == [(1, 1), (2, 1), (3, 2), (4, 2)]
    assert [sums_of_bits(tmp_path / "run", step) for step in (1, 2, 3, 4)] == [
        sums(step) for step in (1, 2, 3, 4)
    ]
    assert sums(4) == once


def test_setups_lightning_several_optimizers_have_a_run_each(tmp_path: Path) -> None:
    batches = data(STEPS)
    module = Duel()
    callback = SdcGuardCallback(tmp_path / "run", policy="record")
    trainer = trainer_of(tmp_path, callback, max_steps=-1, max_epochs=1)
    trainer.fit(module, loader(batches))
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    first, second = tmp_path / "run" / "optimizer=0", tmp_path / "run" / "optimizer=1"
    hand = [
        by_hand(Net(7), module.before[0], [[batch] for batch in batches], net_loss),
        by_hand(Net(3), module.before[1], [[batch] for batch in batches[::2]], net_loss),
    ]
    assert rows(first, "step, attempt, loss") == close(
        [(n + 1, 1, hand[0][n][0]) for n in range(4)]
    )
    assert rows(second, "step, attempt, loss") == close(
        [(n + 1, 1, hand[1][n][0]) for n in range(2)]
    )
    for run, name, expected in zip([first, second], ["first", "second"], hand, strict=True):
        assert own_norms(run, name) == pytest.approx([norm for _, norm in expected], rel=1e-6)
        assert rows(run, "step", "alerts") == []
    resumed = SdcGuardCallback(tmp_path / "run", policy="record")
    trainer = trainer_of(tmp_path, resumed, max_steps=-1, max_epochs=2)
    trainer.fit(Duel(), loader(batches), ckpt_path=tmp_path / "one.ckpt")
    assert trainer.global_step == 12  # which counts the steps of both
    assert rows(first, "step, attempt") == [(n, 1 if n < 5 else 2) for n in range(1, 9)]
    assert rows(second, "step, attempt") == [(n, 1 if n < 3 else 2) for n in range(1, 5)]


def own_norms(run: Path, net: str) -> list[float]:
    """Gradient norm over the layers of one net, for each step."""
    query = (
        "SELECT sqrt(sum(norm * norm)) FROM layers JOIN layer_names USING (layer)"
        " WHERE starts_with(name, $net) GROUP BY step ORDER BY step"
    )
    with RunReader(run) as reader:
        return [norm for (norm,) in reader.rows(query, {"net": net})]


def test_setups_lightning_that_fails_is_left_as_it_was_and_trains_again(tmp_path: Path) -> None:
    module = Line()
    module.fails_at = 3
    callback = SdcGuardCallback(tmp_path / "run")
    trainer = trainer_of(tmp_path, callback)
    with pytest.raises(RuntimeError, match="out of patience"):
        trainer.fit(module, loader(data(STEPS)))
    nothing_is_left(trainer, module)
    assert rows(tmp_path / "run", "step") == [(1,), (2,), (3,)]
    again, trainer = Line(), trainer_of(tmp_path, callback)
    trainer.fit(again, loader(data(STEPS)))
    nothing_is_left(trainer, again)
    assert rows(tmp_path / "run", "step, attempt") == [(step, 2) for step in (1, 2, 3, 4)]


def nothing_is_left(trainer: Any, module: torch.nn.Module) -> None:
    for optimizer in trainer.optimizers:
        assert not optimizer._optimizer_step_pre_hooks
        assert not optimizer._optimizer_step_post_hooks
    assert not any(p._post_accumulate_grad_hooks for p in module.parameters())


def test_setups_lightning_halts_and_closes(tmp_path: Path) -> None:
    class Flip(pl.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            if trainer.global_step == 2:
                with torch.no_grad():
                    pl_module.net.layers[0].weight.view(torch.int32)[2, 3] ^= 1 << 20

    trainer = trainer_of(
        tmp_path, SdcGuardCallback(tmp_path / "run", policy="halt", digest_budget=None), Flip()
    )
    module = Line()
    with pytest.raises(TrainingHalted, match=r"net\.layers\.0\.weight"):
        trainer.fit(module, loader(data(STEPS)))
    nothing_is_left(trainer, module)
    assert rows(tmp_path / "run", "step, severity", "alerts") == [(3, "proven")]


def test_setups_lightning_can_be_copied_while_it_trains(tmp_path: Path) -> None:
    copies: list[Any] = []

    class Copy(pl.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            copies.append(copy.deepcopy(callback))
            copies.append(pickle.loads(pickle.dumps(pl_module.net)))

    callback = pickle.loads(pickle.dumps(SdcGuardCallback(tmp_path / "run")))
    trainer_of(tmp_path, callback, Copy(), max_steps=1).fit(Line(), loader(data(1)))
    assert copies[0].guards == []
    assert copies[1].state_dict().keys() == Net().state_dict().keys()
    assert rows(tmp_path / "run", "step") == [(1,)]


def test_setups_lightning_tells_when_its_count_of_steps_is_not_that_of_the_optimizer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Sometimes(Line):
        def optimizer_step(
            self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
        ) -> None:
            if batch_idx % 2:
                optimizer_closure()
            else:
                optimizer.step(closure=optimizer_closure)

    callback = SdcGuardCallback(tmp_path / "run")
    trainer_of(tmp_path, callback).fit(Sometimes(), loader(data(STEPS)))
    told = [record.message for record in caplog.records if record.name == "sdc_guard"]
    assert len(told) == 1
    assert "Lightning counts 2 steps" in told[0]
    assert rows(tmp_path / "run", "step") == [(1,), (2,)]


@pytest.mark.filterwarnings("ignore:.*tensorboardX:UserWarning")
@pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning")
def test_setups_lightning_example_of_the_documents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(example("Lightning"), {"module": Line(), "loader": loader(data(2))})
    steps = [step for (step,) in rows(tmp_path / "runs" / "pretrain", "step")]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert list(tmp_path.glob("lightning_logs/version_0/checkpoints/*step=6.ckpt"))
