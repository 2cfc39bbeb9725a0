"""What the Trainers of libraries save, sealed by the guard in their callbacks."""

from __future__ import annotations

import gc
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import bisect
from recorded import rows
from safetensors.torch import load_file

from sdc_guard.archive.sealing.seal_file import SUFFIX, Guarded, seal_at

pytestmark = [
    # of Lightning: advice for a larger training, and what torch has renamed since
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory:UserWarning"),
]


def judged(path: Path) -> Guarded:
    seal = seal_at(path)
    assert seal is not None
    assert seal.guarded is not None
    return seal.guarded


def flip(file: Path, tensor: torch.Tensor) -> None:
    content = bytearray(file.read_bytes())
    content[content.index(tensor.numpy().tobytes()) + 2] ^= 4
    file.write_bytes(content)


def scanned(place: Path) -> tuple[int, dict[int, Any]]:
    answer = bisect("scan", place, "--json")
    return answer.code, {row["step"]: row for row in answer.json["checkpoints"]}


@pytest.fixture(scope="module")
def hf() -> Any:
    import trainer_parts

    return trainer_parts


@pytest.fixture(scope="module")
def li() -> Any:
    import lightning_parts

    return lightning_parts


def test_trainer_checkpoints_are_proven_and_a_flipped_byte_is_found(
    hf: Any, tmp_path: Path
) -> None:
    saving = {"save_strategy": "steps", "save_steps": 1, "save_total_limit": 3}
    callback = hf.SdcGuardCallback(policy="record")
    hf.trainer_of(tmp_path, hf.tiny_llama(), hf.texts(8), callback, **saving).train()
    assert callback.guard.health.errors == 0
    run = tmp_path / "sdc_guard"
    listed = rows(run, "step, path, format, status, reason", "checkpoints")
    assert [row for row in listed if row[0] > 1] == [
        (step, f"../checkpoint-{step}", "hf-trainer", "clean", "") for step in (2, 3, 4)
    ]  # the first may be deleted by the Trainer before it is read
    known = judged(tmp_path / "checkpoint-3")
    kinds = [kind for kind, _ in known.tensors.values()]
    count = len(list(hf.tiny_llama().parameters()))
    assert (kinds.count("param"), kinds.count("exp_avg")) == (count, count)
    code, found = scanned(run)  # the run knows where they lie
    assert (code, {row["status"] for row in found.values()}) == (0, {"clean"})
    assert found.keys() == {2, 3, 4}
    assert {path.name for path in tmp_path.glob(f"*{SUFFIX}")} == {
        f"checkpoint-{step}{SUFFIX}" for step in (2, 3, 4)
    }
    weights = tmp_path / "checkpoint-3" / "model.safetensors"
    name = "model.layers.0.mlp.up_proj.weight"
    flip(weights, load_file(weights)[name])
    code, found = scanned(run)
    assert code == 1
    assert {step: row["status"] for step, row in found.items()} == {
        2: "clean", 3: "corrupt", 4: "clean",
    }  # fmt: skip
    assert "bits [18]" in found[3]["damaged"][name]


def test_a_trainer_that_saves_weights_changed_behind_the_guard_is_suspect(
    hf: Any, tmp_path: Path
) -> None:
    def change(model: torch.nn.Module, **_: Any) -> None:
        with torch.no_grad():
            model.net[0].bias[3] += 1

    saving = {"save_strategy": "steps", "save_steps": 2}
    callback = hf.SdcGuardCallback(policy="record", digest_budget=None)
    hf.trainer_of(tmp_path, hf.Line(), hf.points(8), callback, hf.At(2, change), **saving).train()
    known = judged(tmp_path / "checkpoint-2")
    assert known.status == "suspect"
    assert known.reasons == ("net.0.bias: bytes differ from what step 2 left",)
    after = judged(tmp_path / "checkpoint-4")
    assert after.reasons[0].startswith("incident open since step 3: ")


def test_sealing_may_be_left_out(hf: Any, li: Any, tmp_path: Path) -> None:
    saving = {"save_strategy": "steps", "save_steps": 2}
    callback = hf.SdcGuardCallback(seal_checkpoints=False)
    hf.trainer_of(tmp_path, hf.Line(), hf.points(8), callback, **saving).train()
    assert (tmp_path / "checkpoint-2").is_dir()
    checkpoints = li.ModelCheckpoint(tmp_path / "li", every_n_train_steps=2, save_top_k=-1)
    quiet = li.SdcGuardCallback(tmp_path / "run", seal_checkpoints=False)
    trainer = li.trainer_of(tmp_path, quiet, checkpoints, enable_checkpointing=True)
    trainer.fit(li.Line(), li.loader(li.data(4)))
    assert list((tmp_path / "li").iterdir())
    assert not list(tmp_path.rglob(f"*{SUFFIX}"))


def test_lightning_checkpoints_are_proven_and_a_flipped_byte_is_found(
    li: Any, tmp_path: Path
) -> None:
    saved = tmp_path / "saved"
    checkpoints = li.ModelCheckpoint(
        saved, filename="{step}", every_n_train_steps=1, save_top_k=-1, save_last="link"
    )
    callback = li.SdcGuardCallback(tmp_path / "run", policy="record")
    trainer = li.trainer_of(tmp_path, callback, checkpoints, enable_checkpointing=True)
    trainer.fit(li.Line(), li.loader(li.data(4)))
    assert "save_checkpoint" not in vars(trainer)  # as it was
    assert callback.guards[0].health.errors == 0
    listed = rows(tmp_path / "run", "step, path, format, status", "checkpoints")
    assert listed == [
        (step, f"../saved/step={step}.ckpt", "lightning", "clean") for step in (1, 2, 3, 4)
    ]
    file = saved / "step=2.ckpt"
    moments = torch.load(file, weights_only=True)["optimizer_states"][0]["state"]
    flip(file, moments[0]["exp_avg"])
    code, found = scanned(tmp_path / "run")
    assert code == 1
    assert {step: row["status"] for step, row in found.items()} == {
        1: "clean", 2: "corrupt", 3: "clean", 4: "clean",
    }  # fmt: skip


def test_a_lightning_checkpoint_of_changed_weights_is_suspect(li: Any, tmp_path: Path) -> None:
    class Change(li.Callback):  # type: ignore[misc] # because the class is known when it runs
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            if trainer.global_step == 2:
                pl_module.net.layers[0].weight.data[0, 0] += 1

    checkpoints = li.ModelCheckpoint(
        tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1
    )
    callback = li.SdcGuardCallback(tmp_path / "run", policy="record", digest_budget=None)
    options = {"enable_checkpointing": True, "max_steps": 2}
    trainer = li.trainer_of(tmp_path, callback, Change(), checkpoints, **options)
    trainer.fit(li.Line(), li.loader(li.data(4)))
    assert judged(tmp_path / "step=1.ckpt").status == "clean"
    known = judged(tmp_path / "step=2.ckpt")
    assert known.status == "suspect"
    assert "net.layers.0.weight: bytes differ from what step 2 left" in known.reasons[0]


def test_accelerate_states_are_proven_and_a_flipped_byte_is_found(tmp_path: Path) -> None:
    from accelerate import Accelerator

    from sdc_guard.integrations.accelerate import guard_for

    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    plain = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 1))
    model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters()))
    run = tmp_path / "run"
    options: dict[str, Any] = {"first_step": 1, "policy": "record", "digest_budget": None}
    with guard_for(accelerator, model, optimizer, run=run, **options) as guard:
        for step in (1, 2, 3):
            loss = model(torch.randn(4, 5)).square().mean()
            accelerator.backward(loss)
            guard.observe(loss)
            optimizer.step()
            optimizer.zero_grad()
            if step == 3:
                plain[2].weight.data[0, 0] += 1  # behind the guard
            accelerator.save_state(str(tmp_path / f"state-{step}"))
    assert guard.health.errors == 0
    known = {step: judged(tmp_path / f"state-{step}") for step in (1, 2, 3)}
    assert {step: one.status for step, one in known.items()} == {
        1: "clean", 2: "clean", 3: "suspect",
    }  # fmt: skip
    assert known[3].reasons == ("2.weight: bytes differ from what step 3 left",)
    weights = tmp_path / "state-1" / "model.safetensors"
    flip(weights, load_file(weights)["0.weight"])
    code, found = scanned(run)
    assert code == 1
    assert {step: row["status"] for step, row in found.items()} == {
        1: "corrupt", 2: "clean", 3: "suspect",
    }  # fmt: skip
    accelerator.save_state(str(tmp_path / "afterwards"))  # the guard is closed
    assert not list(tmp_path.glob(f"afterwards*{SUFFIX}"))


def test_accelerate_counts_deletes_and_loads_its_own_checkpoints_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration

    from sdc_guard.integrations.accelerate import guard_for

    torch.manual_seed(0)
    naming = ProjectConfiguration(str(tmp_path), automatic_checkpoint_naming=True, total_limit=2)
    accelerator = Accelerator(cpu=True, project_config=naming)
    plain = torch.nn.Linear(5, 1)
    model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters()))
    with guard_for(accelerator, model, optimizer, run=tmp_path / "run", first_step=1) as guard:
        for _ in range(4):
            accelerator.backward(model(torch.randn(4, 5)).square().mean())
            optimizer.step()
            optimizer.zero_grad()
            accelerator.save_state()
            guard.flush()  # a seal would be there by now, or soon
    saved = plain.weight.detach().clone()
    plain.weight.data.zero_()
    accelerator.load_state()
    assert torch.equal(plain.weight, saved)
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "checkpoint_2", "checkpoint_3",
    ]  # fmt: skip
    assert guard.health.errors == 0
    told = [record for record in caplog.records if "automatic_checkpoint_naming" in record.message]
    assert len(told) == 1


def test_an_accelerator_keeps_no_guard_and_a_copy_of_it_seals_nothing(tmp_path: Path) -> None:
    from accelerate import Accelerator

    from sdc_guard.integrations.accelerate import guard_for

    accelerator = Accelerator(cpu=True)
    plain = torch.nn.Linear(5, 1)
    model, optimizer = accelerator.prepare(plain, torch.optim.AdamW(plain.parameters()))
    guard = guard_for(accelerator, model, optimizer, run=tmp_path / "run", first_step=1)
    assert "save_state" in vars(accelerator)
    around = vars(accelerator)["save_state"].func.__self__
    assert pickle.loads(pickle.dumps(around.__getstate__()["_guard"])) is None
    guard.close()
    alive = weakref.ref(guard)
    del guard
    gc.collect()
    assert alive() is None
    assert "save_state" not in vars(accelerator)
