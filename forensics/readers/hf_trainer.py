"""Folders `checkpoint-N` of the Hugging Face Trainer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from sdc_guard.archive.sealing.contents import HF_PART
from sdc_guard.errors import CheckpointUnreadable, ReadFailed

from ..checkpoint import Checkpoint
from ..content import Content, Integrity
from .findings import Findings
from .hf_layout import PICKLES, STATE, is_trainer_folder, is_trainer_names
from .hf_state import TrainerState, read_state
from .hf_weights import Weights, weights_in
from .joined import JoinedIntegrity, joined
from .listing import is_folder, names_in
from .reader import Reader
from .torch_part import check_part, part_trouble, readable_part

FORMAT: Final = "hf-trainer"
_ELSEWHERE: Final = re.compile(r"global_step\d+|optimizer_\d+")  # of DeepSpeed and of FSDP
_DEEPSPEED: Final = re.compile(r"global_step(\d{1,18})")


@dataclass(frozen=True)
class _Folder:
    path: Path
    names: set[str]

    @property
    def parts(self) -> list[tuple[str, Path]]:
        """Prefix and file of what lies beside the weights."""
        matches = ((HF_PART.fullmatch(name), name) for name in sorted(self.names))
        return [
            (next(filter(None, match.groups())) + ".", self.path / name)
            for match, name in matches
            if match
        ]

    @property
    def deepspeed(self) -> tuple[int, str] | None:
        """Number and name of DeepSpeed's folder in it; of several, the one with the largest."""
        found = [(int(match[1]), match[0]) for name in self.names
                 if (match := _DEEPSPEED.fullmatch(name))]  # fmt: skip
        return max(found, default=None)

    @property
    def weights(self) -> Weights | Findings:
        """The weights in it, or why there are none."""
        return weights_in(self.path, self.names, self.deepspeed and self.deepspeed[1])


def find(path: Path) -> list[Checkpoint]:
    """The checkpoint that a folder is, or those in it.

    A Trainer's output folder holds both, the last model and folders `checkpoint-N`: only these
    are found then.
    """
    if not is_folder(path):
        return []
    inner = [path / name for name in sorted(names_in(path))]
    found = [folder for folder in inner if is_trainer_folder(folder)]
    if not found and is_trainer_names(path.name, names_in(path)):
        found = [path]
    return [_checkpoint(_Folder(folder, names_in(folder))) for folder in found]


def _checkpoint(folder: _Folder) -> Checkpoint:
    state = read_state(folder.path)
    weights = folder.weights
    findings = weights.findings if isinstance(weights, Weights) else weights
    reasons = (*findings.reasons, *_damaged_parts(folder), *_incomplete(folder, state))
    step, notes = _step(folder, state)
    whole = Findings(reasons, (*findings.notes, *notes), findings.readable, step)
    return whole.checkpoint(folder.path, FORMAT, folder.path.name)


def _step(folder: _Folder, state: TrainerState) -> tuple[int | None, tuple[str, ...]]:
    """The step that the folder's content is of: the innermost number that there is."""
    if folder.deepspeed is None:
        return state.step, ()
    step, inner = folder.deepspeed
    if state.step is None or step == state.step:
        return step, ()
    return step, (f"{STATE} says step {state.step}, DeepSpeed's folder beside it is {inner}",)


def _incomplete(folder: _Folder, state: TrainerState) -> Iterator[str]:
    """Files that an interrupted save has not written, and a state that is none."""
    missing = [STATE] if STATE not in folder.names else []
    if state.trouble and not missing:
        yield state.trouble
    parts = {prefix for prefix, _ in folder.parts}
    elsewhere = any(map(_ELSEWHERE.fullmatch, folder.names))
    optimizer = "optimizer." in parts or elsewhere
    if not optimizer and (parts or missing):  # neither: the user wants the weights alone
        missing.append("optimizer.pt")
    if "optimizer." in parts:
        missing += [] if "scheduler." in parts else ["scheduler.pt"]
        missing += [] if any(one.startswith("rng") for one in parts) else ["rng_state.pth"]
    for name in missing:
        yield f"{folder.path.name} incomplete: {name} missing"


def _damaged_parts(folder: _Folder) -> Iterator[str]:
    for _, file in folder.parts:
        if trouble := part_trouble(file):
            yield f"{file.name}: {trouble}"


def _open(checkpoint: Checkpoint) -> Content:
    """Weights by their own names, the other parts' with the part's name before them."""
    folder = _Folder(checkpoint.path, names_in(checkpoint.path))
    weights = folder.weights
    if isinstance(weights, Findings):
        raise CheckpointUnreadable("; ".join(weights.reasons), where=str(folder.path))
    state = read_state(folder.path, whole=True)
    step, _ = _step(folder, state)
    parts = [("", Content({}, step=step)), ("", weights.open())]
    for prefix, file in folder.parts:
        part = readable_part(file)
        if isinstance(part, str):
            part = Content({}, foreign={"": f"cannot be read: {part}"})
        parts.append((prefix, replace(part, step=None)))  # an optimizer counts its own steps
    pickles = {name: "a pickle, not read" for name in PICKLES if name in folder.names}
    parts.append(("trainer_state.", Content({}, numbers=state.numbers)))
    return joined([*parts, ("", Content({}, foreign=pickles))])


def _check(checkpoint: Checkpoint) -> Integrity:
    folder = _Folder(checkpoint.path, names_in(checkpoint.path))
    weights = folder.weights
    if isinstance(weights, Findings):
        raise CheckpointUnreadable("; ".join(weights.reasons), where=str(folder.path))
    found = JoinedIntegrity()
    found.add("", weights.check())
    for prefix, file in folder.parts:
        try:
            found.add(prefix, check_part(file))
        except ReadFailed as error:
            found.unchecked.append(file.name)
            found.why[file.name] = error.what
        except CheckpointUnreadable as error:
            found.damaged[file.name] = error.what
    state = read_state(folder.path, whole=True)
    if state.trouble:
        found.damaged[STATE] = state.trouble
    return found.done()


READER: Final = Reader(format=FORMAT, find=find, open=_open, check=_check)
