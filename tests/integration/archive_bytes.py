"""Archives that a guard made or sealed, with what they hold, and faults of their bytes."""

from __future__ import annotations

import json
import random
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed.checkpoint as dcp
from distributed_launch import Outcome
from safetensors.torch import save_file

from sdc_guard import Guard
from sdc_guard.archive.save import tensors_in

STEPS: Final = (3, 5, 7)
SEAL: Final = ".sdc-seal.json"
_JSON: Final = (".json", SEAL)


@dataclass(frozen=True)
class Archive:
    """A run with three checkpoints.

    Attributes:
        name: of how they were written.
        root: folder that holds the run, in `run`, and what was sealed beside it.
        files: step to the files of its checkpoint, relative to `root`; the seal among them.
        truth: step to the tensors' bytes by name; {} where others load it.
    """

    name: str
    root: Path
    files: Mapping[int, tuple[str, ...]]
    truth: Mapping[int, Mapping[str, bytes]]

    @property
    def shared(self) -> tuple[str, ...]:
        """Files that are no checkpoint's, relative to `root`."""
        return ("run/archive/LATEST",) if self.truth else ()

    def copied(self, place: Path) -> Archive:
        """The same in another place."""
        shutil.copytree(self.root, place)
        return Archive(self.name, place, self.files, self.truth)


@dataclass(frozen=True)
class Kind:
    """Of a training."""

    seed: int = 0
    width: int = 40
    dtype: torch.dtype = torch.bfloat16
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW


AS_EVER: Final = Kind()


class Model(torch.nn.Module):
    """Tensors of equal and of other sizes, of two dtypes, and of a width."""

    def __init__(self, width: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(width, width), torch.nn.Linear(width, width)
        self.last = torch.nn.Linear(width, 3).to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.second(self.first(x).relu()).to(self.last.bias.dtype))
        return found


class Training:
    """A small model with a guard."""

    def __init__(self, run: Path, kind: Kind) -> None:
        torch.manual_seed(kind.seed)
        self.width = kind.width
        self.model = Model(kind.width, kind.dtype)
        self.optimizer = kind.optimizer(self.model.parameters(), lr=0.01)
        self.guard = Guard(
            self.model, self.optimizer, run=run, digest_budget=None, first_step=1,
            policy="record", probe_every=None, archive_format="torch",
        )  # fmt: skip

    def steps(self, count: int) -> None:
        for _ in range(count):
            loss = self.model(torch.randn(4, self.width)).float().square().mean()
            loss.backward()
            self.guard.observe(loss)
            self.optimizer.step()
            self.optimizer.zero_grad()

    @property
    def objects(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def state(self) -> dict[str, Any]:
        return {name: one.state_dict() for name, one in self.objects.items()}


def stored(payload: Mapping[str, Any]) -> dict[str, bytes]:
    """The bytes of the tensors of a payload, by dotted path."""
    return {
        name: tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, tensor in tensors_in(payload).items()
    }


def by_guard(root: Path, kind: Kind = AS_EVER) -> Archive:
    """`guard.checkpoint` of one process."""
    one = Training(root / "run", kind)
    files, truth = {}, {}
    for step in STEPS:
        one.steps(step - max((x for x in STEPS if x < step), default=0))
        folder = one.guard.checkpoint(one.objects, step)
        assert folder is not None
        files[step], truth[step] = _within(root, folder), stored(one.state())
    one.guard.close()
    return Archive("guard", root, files, truth)


def by_ranks(root: Path, told: Outcome) -> Archive:
    """`guard.checkpoint` of two ranks, as the scenario `archive_bytes` left it."""
    shutil.copytree(told.run("archive_bytes"), root / "run")
    files, truth = {}, {}
    for step, (name, content) in told.told("archive_bytes", 0)["saved"].items():
        files[step] = _within(root, root / "run" / "archive" / name)
        truth[step] = {key: value.tobytes() for key, value in content.items()}
    return Archive("ranks", root, files, truth)


def sealed(root: Path, name: str, kind: Kind = AS_EVER) -> Archive:
    """What a script saves by itself, in the way called `name`, and seals."""
    one = Training(root / "run", kind)
    files = {}
    for step in STEPS:
        one.steps(step - max((x for x in STEPS if x < step), default=0))
        place = root / "saved" / _NAMES[name].format(step)
        place.parent.mkdir(exist_ok=True)
        _SAVES[name](place, one.state(), step)
        seal = one.guard.seal(place, step, wait=True)
        assert seal is not None
        assert seal.guarded is not None
        assert seal.guarded.status == "clean", seal.guarded.reasons
        own = _within(root, place) if place.is_dir() else (f"saved/{place.name}",)
        files[step] = (*own, f"saved/{place.name}{SEAL}")
    one.guard.close()
    return Archive(name, root, files, {})


def _within(root: Path, folder: Path) -> tuple[str, ...]:
    return tuple(sorted(str(file.relative_to(root)) for file in folder.iterdir()))


def _trainer(folder: Path, state: Mapping[str, Any], step: int) -> None:
    folder.mkdir()
    save_file(dict(state["model"]), folder / "model.safetensors", {"format": "pt"})
    torch.save(state["optimizer"], folder / "optimizer.pt")
    torch.save({"last_epoch": step, "_step_count": step + 1}, folder / "scheduler.pt")
    told = {"global_step": step, "epoch": 0.5, "log_history": [{"loss": 1.0, "step": step}]}
    (folder / "trainer_state.json").write_text(json.dumps(told, indent=2))


def _lightning(file: Path, state: Mapping[str, Any], step: int) -> None:
    weights, moments = state["model"], [state["optimizer"]]
    version = "2.5.0"
    torch.save(
        {"epoch": 0, "global_step": step, "pytorch-lightning_version": version,
         "state_dict": weights, "optimizer_states": moments, "loops": {}}, file,
    )  # fmt: skip


def _distributed(folder: Path, state: Mapping[str, Any], step: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # because it warns that this is one process
        dcp.save({**state, "step": step}, checkpoint_id=folder, no_dist=True)


_NAMES: Final = {
    "trainer": "checkpoint-{}", "lightning": "epoch=0-step={}.ckpt",
    "torch": "step-{}.pt", "dcp": "step-{}",
}  # fmt: skip
_SAVES: Final[Mapping[str, Callable[[Path, Mapping[str, Any], int], None]]] = {
    "trainer": _trainer,
    "lightning": _lightning,
    "torch": lambda file, state, step: torch.save({**state, "step": step}, file),
    "dcp": _distributed,
}
SEALED: Final = tuple(_SAVES)


@dataclass(frozen=True)
class Fault:
    """What was done to an archive.

    Attributes:
        text: what, in words.
        steps: those of the checkpoints that are damaged by it.
        harmless: whether what the files say is the same as before.
        gone: whether a checkpoint is not there any more, or nothing says what it was.
    """

    text: str
    steps: frozenset[int]
    harmless: bool = False
    gone: bool = False


BYTES: Final = ("flip", "flips", "burst", "page", "stuck", "empty", "half", "last", "appended")
KINDS: Final = (*BYTES, "records", "other step", "deleted", "manifests", "latest")


def damage(archive: Archive, kind: str, chosen: random.Random) -> Fault:
    """Do one fault of a kind to an archive, at a place that is chosen."""
    if kind == "latest":
        return _latest(archive, chosen)
    step = chosen.choice(STEPS)
    if kind in ("other step", "manifests"):
        return _swapped_files(archive, kind, step, chosen)
    if kind == "records":
        return _swapped_records(archive, step, chosen)
    name = chosen.choice([*archive.files[step], *archive.shared])
    file = archive.root / name
    if kind == "deleted":
        file.unlink()
        alone = not any((archive.root / one).exists() for one in archive.files[step][:1])
        gone = name.endswith(SEAL) or (alone and len(archive.files[step]) == 2)
        return Fault(f"{name} deleted", frozenset({step}), name in archive.shared, gone)
    before = file.read_bytes()
    after, text = changed(before, kind, chosen)
    file.write_bytes(after)
    same = after == before or name in archive.shared or _says_the_same(file, before, after)
    return Fault(f"{name}: {text}", frozenset({step}), same)


def changed(content: bytes, kind: str, chosen: random.Random) -> tuple[bytes, str]:
    """The bytes of a file after a fault, and where it was."""
    found, size = bytearray(content), len(content)
    at = chosen.randrange(size)
    if kind in ("flip", "flips"):
        places = [
            chosen.randrange(8 * size) for _ in range(1 if kind == "flip" else chosen.randint(1, 8))
        ]
        for bit in places:
            found[bit // 8] ^= 1 << bit % 8
        return bytes(found), f"bits {places} flipped"
    if kind == "burst":
        end = min(size, at + 64)
        found[at:end] = chosen.randbytes(end - at)
    elif kind == "page":
        at -= at % 4096
        found[at : at + 4096] = bytes(min(4096, size - at))
    elif kind == "stuck":
        lane, mask = chosen.randrange(8), 1 << chosen.randrange(8)
        for place in range(lane, size, 8):
            found[place] |= mask
        at = lane
    elif kind == "appended":
        found += chosen.randbytes(chosen.choice((1, 4, 4096)))
    else:
        del found[{"empty": 0, "half": size // 2, "last": size - 1}[kind] :]
    return bytes(found), f"{kind} at {at}"


def _says_the_same(file: Path, before: bytes, after: bytes) -> bool:
    """Whether JSON is the same but for blanks; files with a checksum of their own bytes aside."""
    if not file.name.endswith(("manifest.json", SEAL)):
        return False
    try:
        return bool(json.loads(before) == json.loads(after))
    except ValueError:
        return False


def _latest(archive: Archive, chosen: random.Random) -> Fault:
    if not archive.truth:
        return Fault("nothing", frozenset(), harmless=True)
    text = chosen.choice(["step=000003\n", "step=000099\n", "", "../..\n", "\0\xff\n", "x" * 5000])
    (archive.root / "run/archive/LATEST").write_text(text)
    return Fault(f"LATEST is {text[:20]!r}", frozenset(), harmless=True)


def _swapped_files(archive: Archive, kind: str, step: int, chosen: random.Random) -> Fault:
    """A file of a checkpoint, or its manifest or seal, and the same of another one."""
    other = chosen.choice([one for one in STEPS if one != step])
    mine, theirs = archive.files[step], archive.files[other]
    said = [place for place, name in enumerate(mine) if name.endswith(("manifest.json", SEAL))]
    rest = [place for place in range(len(mine)) if place not in said]
    place = chosen.choice(said if kind == "manifests" else rest)
    one, two = archive.root / mine[place], archive.root / theirs[place]
    first, second = one.read_bytes(), two.read_bytes()
    one.write_bytes(second)
    two.write_bytes(first)
    text = f"{mine[place]} and that of step {other} swapped"
    return Fault(text, frozenset({step, other}), harmless=first == second)


def _swapped_records(archive: Archive, step: int, chosen: random.Random) -> Fault:
    """Two ranges of 6,400 bytes, as much as the weights of each of the model's wide layers."""
    large = [n for n in archive.files[step] if (archive.root / n).stat().st_size > 30_000]
    name = chosen.choice(large)
    file = archive.root / name
    content = bytearray(file.read_bytes())
    width, start = 6400, chosen.randrange(len(content) - 12_800)
    one = content[start : start + width]
    content[start : start + width] = content[start + width : start + 2 * width]
    content[start + width : start + 2 * width] = one
    file.write_bytes(content)
    return Fault(f"{name}: 6,400 bytes at {start} and those after them swapped", frozenset({step}))
