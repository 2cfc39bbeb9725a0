"""Checkpoints that Lightning's Trainer itself wrote."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from forensics.index import index
from forensics.readers import lightning
from forensics.spacing import duplicates
from sdc_guard.archive.save import tensors_in

STEPS = (2, 4, 6)

pytestmark = [
    # of Lightning: advice for a larger training, and what torch has renamed since
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore:Checkpoint directory:UserWarning"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trainer's folder: a checkpoint every second step, and last.ckpt."""
    from lightning_parts import Line, ModelCheckpoint, data, loader, trainer_of

    folder = tmp_path_factory.mktemp("lightning")
    keep = ModelCheckpoint(
        folder / "checkpoints", every_n_train_steps=2, save_top_k=-1, save_last=True
    )
    trainer = trainer_of(folder, keep, max_steps=6, enable_checkpointing=True, max_epochs=2)
    trainer.fit(Line(), loader(data(3)))
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained / "checkpoints", tmp_path / "checkpoints"))


def test_each_step_once(folder: Path) -> None:
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "last.ckpt",
        "epoch=0-step=2.ckpt",
        "epoch=1-step=4.ckpt",
        "epoch=1-step=6.ckpt",
    }
    for place in (folder, folder.parent):  # the trainer's own folder, too
        found = index(place)
        assert [one.step for one in found] == list(STEPS)
        assert {one.format for one in found} == {"lightning"}
        assert all(one.readable and one.status == "untested" for one in found)
        assert [one.notes for one in found] == [(), (), ("last.ckpt holds the same tensors",)]
        assert [one.path.name for one in found][2] == "epoch=1-step=6.ckpt"
    assert index(folder / "last.ckpt")[0].step == 6


def test_every_tensor_is_that_of_torch_load(folder: Path) -> None:
    (found,) = index(folder / "epoch=1-step=4.ckpt")
    content = lightning.READER.open(found)
    expected = tensors_in(torch.load(found.path, weights_only=False))
    assert content.tensors.keys() | content.aliases.keys() == expected.keys()
    assert "state_dict.net.layers.0.weight" in content.tensors
    assert any(name.endswith("exp_avg_sq") for name in content.tensors)
    for name, stored in content.tensors.items():
        assert torch.equal(stored.read(), expected[name])
    assert content.step == 4
    assert content.numbers["epoch"] == 1
    checked = lightning.READER.check(found)
    assert set(checked.intact) == content.tensors.keys()


def test_a_flipped_byte(folder: Path) -> None:
    path = folder / "epoch=1-step=4.ckpt"
    weight = torch.load(path, weights_only=False)["state_dict"]["net.layers.0.weight"]
    content = bytearray(path.read_bytes())
    content[content.index(weight.numpy().tobytes()) + 7] ^= 0x40
    path.write_bytes(content)
    damaged = [lightning.READER.check(one).damaged for one in index(folder)]
    assert [set(one) for one in damaged] == [set(), {"state_dict.net.layers.0.weight"}, set()]


def test_a_save_that_was_killed(folder: Path) -> None:
    """A05: part of a file under the final name."""
    path = folder / "epoch=1-step=6.ckpt"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    found = index(folder)
    assert [(one.step, one.readable) for one in found] == [
        (2, True),
        (4, True),
        (6, False),
        (6, True),
    ]
    assert "truncated" in found[2].reasons[0]
    assert found[3].path.name == "last.ckpt"
    assert duplicates(found) == ["2 checkpoints of step 6: epoch=1-step=6.ckpt, last.ckpt"]


def test_a_copy_is_one_by_its_content(folder: Path) -> None:
    shutil.copy(folder / "epoch=1-step=4.ckpt", folder / "epoch=1-step=4-v1.ckpt")
    (folder / "last.ckpt").unlink()
    (folder / "last.ckpt").symlink_to(folder / "epoch=0-step=2.ckpt")
    found = index(folder)
    assert [one.step for one in found] == [2, 4, 6]
    assert found[0].notes == ("last.ckpt holds the same tensors",)
    assert found[1].notes[-1] == "epoch=1-step=4.ckpt holds the same tensors"
    # the same step with other weights is another checkpoint
    other = torch.load(folder / "epoch=0-step=2.ckpt", weights_only=False)
    other["state_dict"]["net.layers.0.bias"] += 1
    torch.save(other, folder / "best.ckpt")
    assert [one.step for one in index(folder)] == [2, 2, 4, 6]


def test_a_folder_of_a_sharding_strategy_is_told(tmp_path: Path) -> None:
    (tmp_path / "epoch=0-step=2.ckpt").mkdir()
    (found,) = index(tmp_path)
    assert (found.step, found.readable) == (2, False)
    assert "a folder of a sharding strategy" in found.reasons[0]
