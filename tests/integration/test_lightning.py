"""Lightning's Trainer, as installed, with a guard as its callback."""

from __future__ import annotations

import copy
import importlib
import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT
from recorded import another_scaler, by_hand, close, example, rows, sum_of_bits, sums_of_bits

from sdc_guard import RunReader, TrainingHalted

pytestmark = [
    # of Lightning: advice for a larger training, and what torch has renamed since
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory:UserWarning"),
]


@pytest.fixture(scope="module")
def li() -> Any:
    """The library, with what the tests make of it."""
    import lightning_parts

    return lightning_parts


@pytest.mark.parametrize("name", ["lightning.pytorch", "pytorch_lightning"])
def test_setups_lightning_values_are_those_of_plain_torch_before_clipping(
    li: Any, name: str, tmp_path: Path
) -> None:
    package = importlib.import_module(name)
    home = name.rpartition("lightning.pytorch")[2] or "lightning"
    integration = importlib.import_module(f"sdc_guard.integrations.{home}")
    callback = integration.SdcGuardCallback(tmp_path / "run", policy="record")
    assert isinstance(callback, package.Callback)
    module, batches = li.line_of(package.LightningModule)(), li.data(li.STEPS)
    trainer = li.trainer_of(tmp_path, callback, package=package, gradient_clip_val=1e-6)
    trainer.fit(module, li.loader(batches))
    expected = by_hand(li.Net(), module.before, [[batch] for batch in batches], li.net_loss)
    assert rows(tmp_path / "run", "loss, grad_norm") == close(expected)
    assert rows(tmp_path / "run", "step, accumulation") == [(n, 1) for n in (1, 2, 3, 4)]
    assert len({hash_ for (hash_,) in rows(tmp_path / "run", "batch_hash")} - {None}) == li.STEPS
    assert callback.guards[0].health.errors == 0


def test_setups_lightning_accumulation(li: Any, tmp_path: Path) -> None:
    # Lightning steps at the end of an epoch, with what is there by then
    module, batches = li.Line(), li.data(5)
    callback = li.SdcGuardCallback(tmp_path / "run", policy="record")
    li.trainer_of(tmp_path, callback, accumulate_grad_batches=2).fit(module, li.loader(batches))
    one, two, three, four, five = batches
    expected = by_hand(
        li.Net(),
        module.before,
        [[one, two], [three, four], [five], [one, two]],
        li.net_loss,
        divisor=2,
    )
    assert rows(tmp_path / "run", "loss, grad_norm") == close(expected)
    assert rows(tmp_path / "run", "accumulation") == [(2,), (2,), (1,), (2,)]


@pytest.mark.parametrize("clip", [None, 1e-6])
def test_setups_lightning_in_mixed_precision_with_a_scaler(
    li: Any, clip: float | None, tmp_path: Path
) -> None:
    # precision="16-mixed" makes bf16 of it on a CPU; its plugin does float16 there, with a scaler
    batches, scale = li.data(li.STEPS), 2.0**8
    batches[0][1] *= 1e5  # its gradient is no float16 in step 1
    plugin = li.MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=scale))
    callback = li.SdcGuardCallback(tmp_path / "run", policy="record")
    module = li.Line()
    trainer = li.trainer_of(tmp_path, callback, plugins=[plugin], gradient_clip_val=clip)
    other = another_scaler()
    trainer.fit(module, li.loader(batches))
    assert (plugin.scaler.get_scale(), other.get_scale()) == (scale / 2, 2.0**16)
    run = tmp_path / "run"
    assert rows(run, "step, skipped") == [(1, True), (2, False), (3, False), (4, False)]
    scales = [scale, scale / 2, scale / 2, scale / 2]
    expected = [li.in_float16(*step) for step in zip(module.before, batches, scales, strict=True)]
    recorded = rows(run, "loss, grad_norm")
    assert recorded[0][0] == pytest.approx(expected[0][0])
    del recorded[0], expected[0]
    assert recorded == close(expected)


def test_setups_lightning_line_search_records_the_first_evaluation_of_each_step(
    li: Any, tmp_path: Path
) -> None:
    evaluated = []

    class Searching(li.Line):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.LBFGS(self.net.parameters(), max_iter=3)

        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            loss: torch.Tensor = super().training_step(batch, batch_idx)
            evaluated.append((batch_idx, loss.item()))
            return loss

    callback = li.SdcGuardCallback(tmp_path / "run", policy="record")
    li.trainer_of(tmp_path, callback).fit(Searching(), li.loader(li.data(li.STEPS)))
    first = dict(reversed(evaluated))
    assert len(evaluated) > 2 * len(first)
    assert rows(tmp_path / "run", "step, loss") == [(n + 1, first[n]) for n in range(4)]


def test_setups_lightning_loss_that_is_nan(li: Any, tmp_path: Path) -> None:
    batches = li.data(li.STEPS)
    batches[3][1].fill_(math.nan)
    callback = li.SdcGuardCallback(tmp_path / "run", policy="record")
    li.trainer_of(tmp_path, callback).fit(li.Line(), li.loader(batches))
    finite = [math.isfinite(loss) for (loss,) in rows(tmp_path / "run", "loss")]
    assert finite == [True, True, True, False]
    assert {step for (step,) in rows(tmp_path / "run", "step", "alerts")} == {4}


def test_setups_lightning_bits_and_generator_are_the_same_with_and_without(
    li: Any, tmp_path: Path
) -> None:
    ends = []
    for callbacks in ([], [li.SdcGuardCallback(tmp_path / "run")]):
        module = li.Line(dropout=0.3)
        torch.manual_seed(1)
        trainer = li.trainer_of(tmp_path, *callbacks, accumulate_grad_batches=2)
        trainer.fit(module, li.loader(li.data(8)))
        moments = trainer.optimizers[0].state_dict()["state"].values()
        tensors = [*module.state_dict().values(), torch.get_rng_state()]
        tensors += [value for of_one in moments for value in of_one.values()]
        ends.append([tensor.numpy().tobytes() for tensor in tensors])
    assert len(ends[0]) == 4 + 1 + 4 * 3  # parameters, generator, step and moments of each
    assert ends[0] == ends[1]
    assert rows(tmp_path / "run", "step") == [(1,), (2,), (3,), (4,)]


def test_setups_lightning_checkpoint_n_is_what_guard_step_n_left_behind_also_after_a_resume(
    li: Any,
    tmp_path: Path,
) -> None:
    def fit(resume: Path | None) -> None:
        saving = li.ModelCheckpoint(
            tmp_path, "{step}", save_top_k=-1, every_n_train_steps=1, enable_version_counter=False
        )
        callback = li.SdcGuardCallback(tmp_path / "run", digest_budget=None)
        trainer = li.trainer_of(tmp_path, callback, saving, enable_checkpointing=True)
        # two batches an epoch: Lightning resumes exactly between epochs only
        trainer.fit(li.Line(), li.loader(li.data(2)), ckpt_path=resume)

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


def test_setups_lightning_several_optimizers_have_a_run_each(li: Any, tmp_path: Path) -> None:
    batches = li.data(li.STEPS)
    module = li.Duel()
    callback = li.SdcGuardCallback(tmp_path / "run", policy="record")
    trainer = li.trainer_of(tmp_path, callback, max_steps=-1, max_epochs=1)
    trainer.fit(module, li.loader(batches))
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    first, second = tmp_path / "run" / "optimizer=0", tmp_path / "run" / "optimizer=1"
    hand = [
        by_hand(li.Net(7), module.before[0], [[batch] for batch in batches], li.net_loss),
        by_hand(li.Net(3), module.before[1], [[batch] for batch in batches[::2]], li.net_loss),
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
    resumed = li.SdcGuardCallback(tmp_path / "run", policy="record")
    trainer = li.trainer_of(tmp_path, resumed, max_steps=-1, max_epochs=2)
    trainer.fit(li.Duel(), li.loader(batches), ckpt_path=tmp_path / "one.ckpt")
    assert trainer.global_step == 12  # which counts the steps of both
    assert rows(first, "step, attempt") == [(n, 1 if n < 5 else 2) for n in range(1, 9)]
    assert rows(second, "step, attempt") == [(n, 1 if n < 3 else 2) for n in range(1, 5)]


def test_setups_lightning_several_optimizers_count_skipped_steps_in_a_checkpoint(
    li: Any, tmp_path: Path
) -> None:
    class Save(li.Callback):
        def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
            trainer.save_checkpoint(tmp_path / "newest.ckpt")

    batches = li.data(3)
    batches[2][1] *= 1e5  # its gradients are no float16
    plugin = li.MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**8))
    callback = li.SdcGuardCallback(tmp_path / "run", policy="record")
    trainer = li.trainer_of(
        tmp_path, callback, Save(), plugins=[plugin], max_steps=-1, max_epochs=1
    )
    trainer.fit(li.Duel(), li.loader(batches))
    states = torch.load(tmp_path / "newest.ckpt", weights_only=True)["callbacks"]
    assert states["SdcGuardCallback"] == {"steps": [3, 2]}
    skipped = [rows(tmp_path / "run" / f"optimizer={n}", "step, skipped") for n in (0, 1)]
    assert skipped == [[(1, False), (2, False), (3, True)], [(1, False), (2, True)]]


def own_norms(run: Path, net: str) -> list[float]:
    """Gradient norm over the layers of one net, for each step."""
    query = (
        "SELECT sqrt(sum(norm * norm)) FROM layers JOIN layer_names USING (layer)"
        " WHERE starts_with(name, $net) GROUP BY step ORDER BY step"
    )
    with RunReader(run) as reader:
        return [norm for (norm,) in reader.rows(query, {"net": net})]


def test_setups_lightning_that_fails_is_left_as_it_was_and_trains_again(
    li: Any, tmp_path: Path
) -> None:
    module = li.Line()
    module.fails_at = 3
    callback = li.SdcGuardCallback(tmp_path / "run")
    trainer = li.trainer_of(tmp_path, callback)
    with pytest.raises(RuntimeError, match="out of patience"):
        trainer.fit(module, li.loader(li.data(li.STEPS)))
    nothing_is_left(trainer, module)
    applied = [(1, False), (2, False), (3, False)]
    assert rows(tmp_path / "run", "step, skipped") == [*applied, (4, True)]
    again, trainer = li.Line(), li.trainer_of(tmp_path, callback)
    trainer.fit(again, li.loader(li.data(li.STEPS)))
    nothing_is_left(trainer, again)
    assert rows(tmp_path / "run", "step, attempt") == [(step, 2) for step in (1, 2, 3, 4)]


def nothing_is_left(trainer: Any, module: torch.nn.Module) -> None:
    for optimizer in trainer.optimizers:
        assert not optimizer._optimizer_step_pre_hooks
        assert not optimizer._optimizer_step_post_hooks
    assert not any(p._post_accumulate_grad_hooks for p in module.parameters())


def test_setups_lightning_halts_and_closes(li: Any, tmp_path: Path) -> None:
    class Flip(li.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            if trainer.global_step == 2:
                with torch.no_grad():
                    pl_module.net.layers[0].weight.view(torch.int32)[2, 3] ^= 1 << 20

    trainer = li.trainer_of(
        tmp_path, li.SdcGuardCallback(tmp_path / "run", policy="halt", digest_budget=None), Flip()
    )
    module = li.Line()
    with pytest.raises(TrainingHalted, match=r"net\.layers\.0\.weight"):
        trainer.fit(module, li.loader(li.data(li.STEPS)))
    nothing_is_left(trainer, module)
    assert rows(tmp_path / "run", "step, severity", "alerts") == [(3, "proven")]


def test_setups_lightning_can_be_copied_while_it_trains(li: Any, tmp_path: Path) -> None:
    copies: list[Any] = []

    class Copy(li.Callback):
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            copies.append(copy.deepcopy(callback))
            copies.append(pickle.loads(pickle.dumps(pl_module.net)))

    callback = pickle.loads(pickle.dumps(li.SdcGuardCallback(tmp_path / "run")))
    li.trainer_of(tmp_path, callback, Copy(), max_steps=1).fit(li.Line(), li.loader(li.data(1)))
    assert copies[0].guards == []
    assert copies[1].state_dict().keys() == li.Net().state_dict().keys()
    assert rows(tmp_path / "run", "step") == [(1,)]


def test_setups_lightning_tells_when_its_count_of_steps_is_not_that_of_the_optimizer(
    li: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Sometimes(li.Line):
        def optimizer_step(
            self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None
        ) -> None:
            if batch_idx % 2:
                optimizer_closure()
            else:
                optimizer.step(closure=optimizer_closure)

    callback = li.SdcGuardCallback(tmp_path / "run")
    li.trainer_of(tmp_path, callback).fit(Sometimes(), li.loader(li.data(li.STEPS)))
    told = [record.message for record in caplog.records if record.name == "sdc_guard"]
    assert len(told) == 1
    assert "Lightning counts 2 steps" in told[0]
    assert rows(tmp_path / "run", "step") == [(1,), (2,)]


@pytest.mark.filterwarnings("ignore:.*tensorboardX:UserWarning")
@pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning")
def test_setups_lightning_example_of_the_documents(
    li: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(example("Lightning"), {"module": li.Line(), "loader": li.loader(li.data(2))})
    steps = [step for (step,) in rows(tmp_path / "runs" / "pretrain", "step")]
    assert steps == [1, 2, 3, 4, 5, 6]
    assert list(tmp_path.glob("lightning_logs/version_0/checkpoints/*step=6.ckpt"))


def test_the_benchmark_of_overheads_has_its_norms_as_an_arm(
    li: Any, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    import hook_overhead

    watch = hook_overhead.lightning_norms()
    assert watch is not None
    model = li.Net()
    for parameter in model.parameters():
        parameter.grad = torch.from_numpy(rng.normal(size=parameter.shape)).float()
    total = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters()))
    assert watch(model)["grad_2.0_norm_total"] == pytest.approx(total, rel=1e-6)
