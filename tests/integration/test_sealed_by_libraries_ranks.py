"""What the Trainers of libraries save on two ranks, sealed by the guards in their callbacks."""

from __future__ import annotations

import pytest
from distributed_launch import Outcome, launch
from in_process import bisect

from sdc_guard.archive.sealing.contents import contents_of
from sdc_guard.archive.sealing.seal_file import seal_at

NAMES = {
    "trainer": ("hf-trainer", ["checkpoint-2", "checkpoint-4"]),
    "lightning": ("lightning", ["step=2.ckpt", "step=4.ckpt"]),
    "lightning_fsdp2": ("dcp", ["step=2.ckpt", "step=4.ckpt"]),
    "lightning_whole": ("lightning", ["step=2.ckpt", "step=4.ckpt"]),
    "accelerate": ("files", ["state-1", "state-2"]),
    "accelerate_fsdp2": ("files", ["state-1", "state-2"]),
    "accelerate_whole": ("files", ["state-1", "state-2"]),
}


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """All scenarios, on two processes."""
    scenarios = [f"libraries_{name}" for name in NAMES]
    return launch(tmp_path_factory.mktemp("two"), 2, scenarios)


@pytest.mark.parametrize("name", NAMES)
def test_every_rank_seals_and_the_seals_are_clean(two: Outcome, name: str) -> None:
    told = [two.told(f"libraries_{name}", rank) for rank in range(2)]
    assert [one["health"] for one in told] == ["", ""], two.output()
    assert told[0]["calls"] == told[1]["calls"]
    format, saved = NAMES[name]
    assert [path for path, _ in told[0]["calls"]] == saved
    clean = format, "clean", (), {"param", "exp_avg", "exp_avg_sq", "step"}
    assert told[0]["said"] == dict.fromkeys(saved, clean)


def test_a_byte_in_a_directory_of_dcp_in_a_folder_is_found(two: Outcome) -> None:
    folder = two.run("libraries_accelerate_fsdp2")
    run = two.told("libraries_accelerate_fsdp2", 0)["run"]
    found = bisect("scan", run, "--json")
    assert [one["status"] for one in found.json["checkpoints"]] == ["clean", "clean"]
    seal = seal_at(folder / "state-2")
    assert seal is not None
    name = "pytorch_model_fsdp_0/model.0.weight"
    assert seal.digests[name].shape == (7, 5)
    whole = contents_of(folder / "state-2").tensors[name].read()
    shard = folder / "state-2" / "pytorch_model_fsdp_0" / "__1_0.distcp"
    content = bytearray(shard.read_bytes())
    content[content.index(whole[4:].numpy().tobytes()) + 2] ^= 4  # of rank 1: rows 4 to 6
    shard.write_bytes(content)
    found = bisect("scan", run, "--json")
    rows = {one["step"]: one for one in found.json["checkpoints"]}
    assert (found.code, rows[1]["status"], rows[2]["status"]) == (1, "clean", "corrupt")
    assert "element 20, bits [18]" in rows[2]["damaged"][name]


def test_the_trainers_folder_under_fsdp_holds_the_same(two: Outcome) -> None:
    folder = two.run("libraries_accelerate_fsdp2")
    of_trainer, plain = contents_of(folder / "checkpoint-2"), contents_of(folder / "state-1")
    assert (of_trainer.format, plain.format) == ("hf-trainer", "files")
    assert of_trainer.tensors.keys() == plain.tensors.keys()
    (folder / "checkpoint-2" / "optimizer_0" / ".metadata").unlink()
    assert list(contents_of(folder / "checkpoint-2").unread) == ["optimizer_0/.metadata"]
