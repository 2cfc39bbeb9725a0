"""A training of a second, exact to resume, with one fault on demand; and its record thinned out.

As a script it resumes: small_training.py RUN CHECKPOINT UNTIL.

`thin_out` leaves of a run that digested everything what a guard with a digest budget would have
written: at each step a few tensors after the update, the same before the next one, and all of
them at a checkpoint.
"""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sdc_guard import Guard, RunReader, load_checkpoint
from sdc_guard.inject.injector import flip_bit
from sdc_guard.store.run_file import RunFile
from sdc_guard.store.segment_file import encode
from sdc_guard.store.segments import rank_folder, segment_path

EVERY = 5
TENSORS = 15
LAST = 20
RARE = 11  # a token that no batch before step 13 has


@dataclass(frozen=True)
class Fault:
    """One fault: where, at which step, in which parameter, and which bit."""

    site: str
    step: int
    name: str = "0.weight"
    bit: int = 20


class Net(nn.Sequential):
    """An embedding and two layers: five parameters, fifteen tensors of state with AdamW."""

    def __init__(self) -> None:
        super().__init__(nn.Embedding(12, 6), nn.Linear(6, 8), nn.Linear(8, 12))


def batch_of(step: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(0, RARE, (8, 2), generator=generator)
    if step >= 13:
        tokens[0, 0] = RARE
    return tokens


def train(
    run: Path,
    until: int,
    fault: Fault | None = None,
    resume: Path | None = None,
    budget: float | None = None,
    **options: Any,
) -> Path:
    """Train steps 1 to `until`, or those after a checkpoint; a checkpoint every five steps.

    The options are further ones of the guard.
    """
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.0)
    start = 0
    if resume is not None:
        saved = load_checkpoint(resume)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]
    parameters = dict(model.named_parameters())

    def strike(site: str, step: int, tensor: Callable[[], torch.Tensor]) -> None:
        if fault is not None and (site, step) == (fault.site, fault.step):
            flip_bit(tensor(), _element(fault), fault.bit)

    chosen = parameters[fault.name] if fault else None
    step = start
    if chosen is not None:

        def computed(gradient: torch.Tensor) -> torch.Tensor:
            gradient = gradient.clone()
            strike("computed gradient", step, lambda: gradient)
            return gradient

        chosen.register_hook(computed)
    # registered before the guard's, so that it strikes within the update
    optimizer.register_step_post_hook(lambda *_: strike("update", step, lambda: chosen.data))
    optimizer.register_step_post_hook(
        lambda *_: strike("counted", step, lambda: optimizer.state[chosen]["step"])
    )
    options |= {"policy": "record", "digest_budget": budget}
    with Guard(model, optimizer, run=run, first_step=start + 1, **options) as guard:
        for step in range(start + 1, until + 1):
            strike("param", step, lambda: chosen.data)
            strike("exp_avg", step, lambda: optimizer.state[chosen]["exp_avg"])
            strike("step", step, lambda: optimizer.state[chosen]["step"])
            batch = batch_of(step)
            logits = model(batch)
            if fault is not None and (fault.site, step) == ("activation", fault.step):
                logits = logits * 1.5
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), batch.flatten())
            loss.backward()
            guard.observe(loss, batch)
            strike("gradient", step, lambda: chosen.grad)
            optimizer.step()
            optimizer.zero_grad()
            if step % EVERY == 0:
                guard.checkpoint({"model": model, "optimizer": optimizer}, step)
    return run


ALONE = """
import pickle, sys, torch, small_training
torch.set_num_threads(1)
arguments, options = pickle.loads(bytes.fromhex(sys.argv[1]))
small_training.train(*arguments, **options)
"""


def train_apart(*arguments: object, **options: object) -> Path:
    """`train` in a process of its own, as a replay is: other tests change settings of torch."""
    import preloaded  # not where this is the script: a replay has it not in its path

    call = pickle.dumps((arguments, options)).hex()
    subprocess.run([preloaded.python(), "-c", ALONE, call], cwd=Path(__file__).parent, check=True)
    return Path(str(arguments[0]))


def _element(fault: Fault) -> int:
    """In the embedding the first element of the rare token's row, which nothing reads for long."""
    if fault.site in ("step", "counted"):
        return 0
    return RARE * 6 if fault.name == "0.weight" else 3


def thin_out(run: Path, per_step: int) -> None:
    """Keep of the digests what a budget for `per_step` tensors a step would have recorded."""
    with RunReader(run) as reader:
        keys = reader.rows("SELECT DISTINCT kind, layer FROM digests ORDER BY kind, layer")
        last = reader.rows("SELECT max(step) FROM steps")[0][0]
    assert len(keys) == TENSORS
    turns = {
        step: {keys[(step * per_step + n) % len(keys)] for n in range(per_step)}
        for step in range(last + 1)
    }
    _keep(run, lambda step, key: key in turns[step])


def keep_after_and_before(run: Path, step: int, key: tuple[str, str]) -> None:
    """Keep the digests of one tensor after `step` and before the next one, and of checkpoints."""
    with RunReader(run) as reader:
        numbers = {layer.name: layer.id for layer in reader.run_file.layers}
    chosen = (key[0], numbers[key[1]])
    _keep(run, lambda at, tensor: at == step and tensor == chosen)


def _keep(run: Path, watched: Callable[[int, tuple[str, int]], bool]) -> None:
    """Rewrite the digests: `watched` tensors after a step and before the next one."""
    with RunReader(run) as reader:
        table = reader.arrow("SELECT * EXCLUDE (rank) FROM digests")
    columns = (table[name].to_pylist() for name in ("step", "phase", "kind", "layer"))
    keep = [
        (step % EVERY == 0 or watched(step, (kind, layer)))
        if phase == "after"
        else watched(step - 1, (kind, layer))
        for step, phase, kind, layer in zip(*columns, strict=True)
    ]
    place = rank_folder(run, "digests", 0)
    shutil.rmtree(place)
    place.mkdir()
    segment_path(place, 0).write_bytes(encode(table.filter(keep)))
    told = RunFile.read(run)
    attempts = tuple(replace(attempt, digest_budget=0.2) for attempt in told.attempts)
    replace(told, attempts=attempts).write(run)


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(Path(sys.argv[1]), int(sys.argv[3]), resume=Path(sys.argv[2]))
