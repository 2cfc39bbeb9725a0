"""The Hugging Face Trainer, as installed, with a guard as its callback. Models are made here."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import another_scaler, by_hand, close, example, rows, sum_of_bits, sums_of_bits
from safetensors.torch import load_file

from sdc_guard import TrainingHalted


@pytest.fixture(scope="module")
def hf() -> Any:
    """The library, with what the tests make of it."""
    import trainer_parts

    return trainer_parts


def test_setups_trainer_values_are_those_of_plain_torch_before_clipping(
    hf: Any, tmp_path: Path
) -> None:
    weights, data = hf.Weights(), hf.points(8)
    callback = hf.SdcGuardCallback(policy="record")
    hf.trainer_of(tmp_path, hf.Line(), data, callback, weights, max_grad_norm=1e-6).train()
    batches = [[batch] for batch in hf.collated(data)]
    run = tmp_path / "sdc_guard"  # the default
    assert rows(run, "loss, grad_norm") == close(
        by_hand(hf.Line(), weights.before, batches, hf.line_loss)
    )
    assert rows(run, "step, accumulation") == [(step, 1) for step in (1, 2, 3, 4)]
    assert len({hash_ for (hash_,) in rows(run, "batch_hash")} - {None}) == 4
    assert callback.guard is not None
    assert callback.guard.health.errors == 0


@pytest.mark.parametrize("own_loss", [False, True], ids=["model", "compute_loss_func"])
def test_setups_trainer_accumulation_of_a_transformers_model(
    hf: Any, own_loss: bool, tmp_path: Path
) -> None:
    # 10 samples of 2: steps of 2, 2 and 1 micro-batches, then the data once more
    weights, data = hf.Weights(), hf.texts(10)
    trainer = hf.trainer_of(
        tmp_path,
        hf.tiny_llama(),
        data,
        hf.SdcGuardCallback(tmp_path / "run", policy="record"),
        weights,
        gradient_accumulation_steps=2,
    )
    if own_loss:
        trainer.compute_loss_func = hf.summed_loss
    trainer.train()
    one, two, three, four, five = hf.collated(data)
    steps = [[one, two], [three, four], [five], [one, two]]
    expected = by_hand(hf.tiny_llama(), weights.before, steps, hf.text_loss)
    assert rows(tmp_path / "run", "loss, grad_norm") == close(expected)
    assert rows(tmp_path / "run", "accumulation") == [(2,), (2,), (1,), (2,)]
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert [loss for (loss,) in rows(tmp_path / "run", "loss")] == pytest.approx(logged, rel=1e-6)


def test_setups_trainer_records_a_loss_that_its_log_hides(hf: Any, tmp_path: Path) -> None:
    data = hf.points(8)
    data[6]["labels"] = torch.tensor([math.nan])  # in the last step
    trainer = hf.trainer_of(tmp_path, hf.Line(), data, hf.SdcGuardCallback(policy="record"))
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert all(map(math.isfinite, logged))
    losses = [loss for (loss,) in rows(tmp_path / "sdc_guard", "loss")]
    assert losses == [
        *(pytest.approx(loss) for loss in logged[:3]),
        pytest.approx(math.nan, nan_ok=True),
    ]
    alerts = rows(tmp_path / "sdc_guard", "step, detector", "alerts")
    assert {step for step, _ in alerts} == {4}


def test_setups_trainer_bits_and_generator_are_the_same_with_and_without(
    hf: Any, tmp_path: Path
) -> None:
    ends = []
    for number, callbacks in enumerate([[], [hf.SdcGuardCallback()]]):
        trainer = hf.trainer_of(
            tmp_path / str(number),
            hf.tiny_llama(dropout=0.2),
            hf.texts(16),
            *callbacks,
            gradient_accumulation_steps=2,
            train_sampling_strategy="random",
        )
        trainer.train()
        state = trainer.optimizer.state_dict()["state"]
        tensors = [*trainer.model.state_dict().values(), torch.get_rng_state()]
        tensors += [value for moments in state.values() for value in moments.values()]
        ends.append([tensor.numpy().tobytes() for tensor in tensors])
    assert len(ends[0]) == 12 + 1 + 12 * 3  # parameters, generator, step and moments of each
    assert ends[0] == ends[1]
    assert len(rows(tmp_path / "1" / "sdc_guard", "step")) == 4


def test_setups_trainer_checkpoint_n_is_what_guard_step_n_left_behind_also_after_a_resume(
    hf: Any,
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 1}
    data, run = hf.texts(8), tmp_path / "sdc_guard"
    hf.trainer_of(
        tmp_path, hf.tiny_llama(), data, hf.SdcGuardCallback(digest_budget=None), **options
    ).train()
    once = load_file(tmp_path / "checkpoint-4" / "model.safetensors")
    resumed = hf.trainer_of(
        tmp_path, hf.tiny_llama(), data, hf.SdcGuardCallback(digest_budget=None), **options
    )
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    steps = rows(run, "step, attempt")
    assert steps == [(1, 1), (2, 1), (3, 2), (4, 2)]
    for step, _ in steps:
        saved = load_file(tmp_path / f"checkpoint-{step}" / "model.safetensors")
        expected = {name: sum_of_bits(tensor) for name, tensor in saved.items()}
        assert sums_of_bits(run, step) == expected
    again = load_file(tmp_path / "checkpoint-4" / "model.safetensors")
    assert {name: sum_of_bits(tensor) for name, tensor in once.items()} == {
        name: sum_of_bits(tensor) for name, tensor in again.items()
    }


def test_setups_trainer_that_fails_is_left_as_it_was_and_trains_again(
    hf: Any, tmp_path: Path
) -> None:
    def fail(**_: Any) -> None:
        raise RuntimeError("out of patience")

    failing = hf.At(3, fail)
    callback = hf.SdcGuardCallback()
    trainer = hf.trainer_of(tmp_path, hf.Line(), hf.points(8), callback, failing)
    with pytest.raises(RuntimeError, match="out of patience"):
        trainer.train()
    first = callback.guard
    assert first is not None
    assert first.step == 4
    nothing_is_left(trainer)
    assert rows(tmp_path / "sdc_guard", "step") == [(1,), (2,), (3,)]
    trainer.remove_callback(failing)
    trainer.train()
    assert callback.guard is not first
    nothing_is_left(trainer)
    assert rows(tmp_path / "sdc_guard", "step, attempt") == [(step, 2) for step in (1, 2, 3, 4)]


def nothing_is_left(trainer: Any) -> None:
    assert not {"training_step", "_run_epoch"} & set(vars(trainer))
    optimizer = trainer.optimizer.optimizer
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not any(p._post_accumulate_grad_hooks for p in trainer.model.parameters())


def test_setups_trainer_halts_and_closes(hf: Any, tmp_path: Path) -> None:
    def overwrite(model: torch.nn.Module, **_: Any) -> None:
        with torch.no_grad():
            model.net[0].weight.view(torch.int32)[2, 3] ^= 1 << 20

    trainer = hf.trainer_of(
        tmp_path,
        hf.Line(),
        hf.points(8),
        hf.SdcGuardCallback(policy="halt", digest_budget=None),
        hf.At(2, overwrite),
    )
    with pytest.raises(TrainingHalted, match=r"net\.0\.weight"):
        trainer.train()
    nothing_is_left(trainer)
    assert trainer.state.global_step == 2
    alerts = rows(tmp_path / "sdc_guard", "step, severity", "alerts")
    assert alerts == [(3, "proven")]


def test_setups_trainer_can_be_copied_while_it_trains(hf: Any, tmp_path: Path) -> None:
    copies: list[Any] = []

    def copy_all(**kwargs: Any) -> None:
        copies.append(copy.deepcopy(trainer))
        copies.append(pickle.loads(pickle.dumps(callback)))
        copies.append(pickle.loads(pickle.dumps(kwargs["model"])))

    callback = hf.SdcGuardCallback(policy="record")
    trainer = hf.trainer_of(tmp_path, hf.Line(), hf.points(8), callback, hf.At(2, copy_all))
    trainer.train()
    other, unpickled, model = copies
    assert unpickled.guard is None
    assert model.state_dict().keys() == trainer.model.state_dict().keys()
    batch = hf.collated(hf.points(2))[0]
    loss = other.training_step(other.model, batch)
    assert loss.item() == pytest.approx(hf.line_loss(other.model.double(), batch).item(), rel=1e-6)
    assert rows(tmp_path / "sdc_guard", "step") == [(1,), (2,), (3,), (4,)]


def test_setups_trainer_keeps_what_another_callback_put_in_its_place(
    hf: Any, tmp_path: Path
) -> None:
    calls = []

    class Counting(hf.TrainerCallback):
        def on_train_begin(self, *_: Any, **kwargs: Any) -> None:
            inner = trainer.training_step
            trainer.training_step = lambda *a, **k: (calls.append(1), inner(*a, **k))[1]

    trainer = hf.trainer_of(tmp_path, hf.Line(), hf.points(8), hf.SdcGuardCallback(), Counting())
    trainer.train()
    assert len(calls) == 4
    assert "training_step" in vars(trainer)
    trainer.training_step(trainer.model, hf.collated(hf.points(2))[0])  # the guard has let go of it
    assert len(calls) == 5
    assert rows(tmp_path / "sdc_guard", "step, tokens") == [(step, 2) for step in (1, 2, 3, 4)]
    trainer.remove_callback(Counting)
    trainer.train()  # what the first training left inside of the other's does not record again
    assert len(calls) == 9
    assert rows(tmp_path / "sdc_guard", "step, tokens") == [(step, 2) for step in (1, 2, 3, 4)]


def test_setups_trainer_with_a_scaler_records_unscaled_gradients_and_skipped_steps(
    hf: Any,
    tmp_path: Path,
) -> None:
    # Accelerate makes no scaler on a CPU, but takes one that is there when it prepares
    weights, data = hf.Weights(), hf.points(8)
    data[1]["labels"] *= 1e12  # overflows in step 1 when it is scaled
    trainer = hf.trainer_of(
        tmp_path, hf.Line(), data, hf.SdcGuardCallback(policy="record"), weights
    )
    trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**100)
    other = another_scaler()
    trainer.train()
    assert other.get_scale() == 2.0**16
    assert trainer.accelerator.scaler.get_scale() == 2.0**99
    run = tmp_path / "sdc_guard"
    assert rows(run, "step, skipped") == [(1, True), (2, False), (3, False), (4, False)]
    batches = [[batch] for batch in hf.collated(data)]
    expected, recorded = (
        by_hand(hf.Line(), weights.before, batches, hf.line_loss),
        rows(run, "loss, grad_norm"),
    )
    for values in (expected, recorded):
        del values[0]
    assert recorded == close(expected)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument:UserWarning")  # on a CPU
def test_setups_trainer_example_of_the_documents(
    hf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    exec(example("Hugging Face Trainer"), {"model": hf.tiny_llama(), "dataset": hf.texts(16)})
    steps = [step for (step,) in rows(tmp_path / "output" / "sdc_guard", "step")]
    assert steps == [1, 2, 3, 4, 5, 6]
    saved = {path.name for path in (tmp_path / "output").glob("checkpoint-*")}
    names = {f"checkpoint-{step}" for step in steps[1::2]}
    assert saved == names | {f"{name}.sdc-seal.json" for name in names}
