"""A small training that resumes to the bit, with faults on demand; for `bisect_campaign.py`.

    python benchmarks/bisect_training.py RUN --resume CHECKPOINT --until STEP

Alone or, started by torchrun, with DistributedDataParallel on gloo. Without a guard (--log) it
writes a log of its losses, and plain files of torch.save.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - because this is how everyone writes it
import xxhash
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sdc_guard import Guard, Injector, load_checkpoint
from sdc_guard.guard import RUN_VARIABLE
from sdc_guard.inject.fault import Fault, InjectionRecord
from sdc_guard.signals.capture import VARIABLE, CaptureRequest

STEPS, EVERY = 24, 6
VOCABULARY, CONTEXT, WIDTH, BATCH, WIDE = 64, 8, 48, 16, 100_000


class Net(nn.Module):
    """About 20,000 parameters, dropout, a norm with buffers.

    Args:
        wide: whether there is a parameter of 100,000 elements besides, whose squares are summed
            by as many threads as there are.
    """

    def __init__(self, *, wide: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, 24)
        self.inner = nn.Linear(24 * CONTEXT, WIDTH)
        self.norm, self.drop = nn.BatchNorm1d(WIDTH), nn.Dropout(0.1)
        self.middle, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, VOCABULARY)
        self.wide = nn.Parameter(torch.randn(WIDE)) if wide else None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.inner(self.tokens(tokens).flatten(1))).relu()
        out: torch.Tensor = self.head(F.gelu(self.middle(self.drop(x))))
        return out if self.wide is None else out + 1e-5 * self.wide.square().sum()


@dataclass(frozen=True)
class Plan:
    """What is trained.

    Attributes:
        seed: of weights, batches and dropout.
        faults: what is injected; `draws` decides what they leave open.
        forget: what a resume does not restore: "generator", "position", "buffers".
        jitter: from the fourth step after a resume on, gradients are scaled by 1 + 1e-7.
        constant: the outputs are zeros, whatever the input.
        threads: of torch.
        wide: see Net.
        wrong_batch: (rank, step) at which the batch's targets are shifted.
        pause: seconds added to each step.
    """

    seed: int = 0
    faults: tuple[Fault, ...] = ()
    draws: int = 0
    forget: tuple[str, ...] = ()
    jitter: bool = False
    constant: bool = False
    threads: int = 1
    wide: bool = False
    wrong_batch: tuple[int, int] | None = None
    pause: float = 0.0
    guard: dict[str, Any] = field(default_factory=dict)


@dataclass
class Trained:
    """What a training left: hashes of state and gradients by step, injections, seconds."""

    hashes: dict[int, str]
    records: list[InjectionRecord]
    missed: list[str]
    seconds: float


def batch_of(plan: Plan, position: int, rank: int) -> torch.Tensor:
    """Tokens, shape (BATCH, CONTEXT + 1): the last one is the target."""
    generator = torch.Generator().manual_seed(plan.seed * 100_003 + position * 17 + rank)
    start = torch.randint(0, VOCABULARY, (BATCH, 1), generator=generator)
    stride = torch.randint(1, 4, (BATCH, 1), generator=generator)
    return (start + stride * torch.arange(CONTEXT + 1)) % VOCABULARY


def train(
    run: Path,
    plan: Plan,
    until: int = STEPS,
    resume: Path | None = None,
    *,
    hashed: bool = False,
    log: Path | None = None,
) -> Trained:
    """Train up to the step `until`, or those after a checkpoint; a checkpoint every 6 steps.

    Args:
        hashed: whether state and gradients are hashed, by another function than the guard's.
        log: no guard: losses go to this CSV file, checkpoints to torch.save files in `run`.
    """
    run.mkdir(parents=True, exist_ok=True)
    threads = torch.get_num_threads()
    torch.set_num_threads(plan.threads)
    try:
        return _train(run, plan, until, resume, hashed, log)
    finally:
        torch.set_num_threads(threads)


def _train(
    run: Path, plan: Plan, until: int, resume: Path | None, hashed: bool, log: Path | None
) -> Trained:
    ranks = dist.is_initialized()
    rank = dist.get_rank() if ranks else 0
    torch.manual_seed(plan.seed + 1000 * (resume is not None))
    plain = Net(wide=plan.wide)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.01)
    start, position = _restore(plain, optimizer, resume, plan, rank) if resume else (0, 0)
    model: nn.Module = DistributedDataParallel(plain) if ranks else plain
    done = Trained({}, [], [], 0.0)
    with contextlib.ExitStack() as attached:
        guard = injector = None
        if log is None:
            options = {"policy": "record", "digest_budget": None, "digest_gradients": True}
            options |= {"probe_every": None, **plan.guard}
            guard = Guard(model, optimizer, run=run, first_step=start + 1, **options)
            attached.enter_context(guard)
        if plan.faults:
            injector = Injector(model, optimizer, seed=plan.draws, run=run, first_step=start + 1)
            attached.enter_context(injector)
            for fault in plan.faults:
                injector.add(fault)
        losses = attached.enter_context(_losses(log, resume is None))
        began = time.perf_counter()
        for step in range(start + 1, until + 1):
            batch, position = batch_of(plan, position, rank), position + 1
            if (rank, step) == plan.wrong_batch:
                batch[:, -1] = (batch[:, -1] + 1) % VOCABULARY
            time.sleep(plan.pause)
            out = model(batch[:, :-1])
            loss = F.cross_entropy(out * 0 if plan.constant else out, batch[:, -1])
            loss.backward()
            if guard is not None:
                guard.observe(loss, batch)
            losses(step, loss)
            _jitter(plan, plain, resume is not None and step > start + 3)
            nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            optimizer.step()
            if hashed:
                done.hashes[step] = _hash(plain, optimizer)
            optimizer.zero_grad()
            if step % EVERY == 0:
                _save(run, guard, plain, optimizer, step, position)
        done.seconds = time.perf_counter() - began
    if injector is not None:
        done.records, done.missed = injector.records, [one.reason for one in injector.missed]
    if guard is not None:
        assert guard.health.errors == 0, guard.health.last_error
    return done


def _restore(
    model: Net, optimizer: torch.optim.Optimizer, path: Path, plan: Plan, rank: int
) -> tuple[int, int]:
    saved = load_checkpoint(path) if path.is_dir() else torch.load(path, weights_only=True)
    state = saved["model"]
    if "buffers" in plan.forget:
        names = {name for name, _ in model.named_buffers()}
        state = {**state, **{n: b for n, b in model.state_dict().items() if n in names}}
    model.load_state_dict(state)
    optimizer.load_state_dict(saved["optimizer"])
    if "generator" not in plan.forget:
        torch.set_rng_state(saved["generators"][rank])
    return saved["step"], 0 if "position" in plan.forget else saved["position"]


def _save(
    run: Path,
    guard: Guard | None,
    model: Net,
    optimizer: torch.optim.Optimizer,
    step: int,
    position: int,
) -> None:
    generators: list[Any] = [torch.get_rng_state()]
    if dist.is_initialized():
        generators = [None] * dist.get_world_size()
        dist.all_gather_object(generators, torch.get_rng_state())
    state = {"model": model, "optimizer": optimizer}
    plain = {"generators": generators, "position": position}
    if guard is None:
        held = {name: value.state_dict() for name, value in state.items()}
        torch.save({"step": step, **held, **plain}, run / f"step-{step:04d}.pt")
    elif not dist.is_initialized() or dist.get_rank() == 0:
        guard.checkpoint(state | plain, step)


@contextlib.contextmanager
def _losses(log: Path | None, new: bool) -> Iterator[Any]:
    if log is None:
        yield lambda step, loss: None
        return
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w" if new else "a", newline="") as file:
        writer = csv.writer(file)
        if file.tell() == 0:
            writer.writerow(("step", "loss"))
        yield lambda step, loss: writer.writerow((step, loss.item()))


def _jitter(plan: Plan, model: nn.Module, now: bool) -> None:
    if plan.jitter and now:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad *= 1 + 1e-7


def _hash(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    found = xxhash.xxh3_128()
    for parameter in model.parameters():
        held = [parameter, parameter.grad, *optimizer.state[parameter].values()]
        for tensor in held:
            if tensor is not None:
                found.update(tensor.detach().numpy().tobytes())
    return found.hexdigest()


@dataclass(frozen=True)
class Again:
    """Replays in this process, as a resume command would in its own.

    Attributes:
        plan: of the replays; without faults, unless they are still there.
        seconds: gets how long the steps of each replay took, with their number.
    """

    plan: Plan
    seconds: list[tuple[int, float]] = field(default_factory=list)

    def inputs(self) -> dict[str, Any]:
        """Nothing that a file could show."""
        return {"plan": repr(self.plan)}

    def replay(
        self, checkpoint: Any, until: int, target: Path, capture: CaptureRequest | None = None
    ) -> Path:
        """As `ResumeCommand.replay`."""
        asked = {RUN_VARIABLE: str(target)}
        asked |= {VARIABLE: capture.to_variable()} if capture else {}
        os.environ.update(asked)
        try:
            done = train(target, self.plan, until, resume=checkpoint.path)
        finally:
            for variable in asked:
                del os.environ[variable]
        self.seconds.append((until - checkpoint.step, done.seconds))
        return target


def main() -> None:
    """Train as a script."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--resume", type=Path)
    parser.add_argument("--until", type=int, default=STEPS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, help="no guard: losses go to this CSV file")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds added to each step")
    args = parser.parse_args()
    if "WORLD_SIZE" in os.environ:
        dist.init_process_group("gloo")
    plan = Plan(seed=args.seed, pause=args.pause)
    train(args.run, plan, args.until, args.resume, log=args.log)
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
