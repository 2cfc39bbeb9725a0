"""Trains a GPT of two thousand parameters on a made-up text: the training of the recorded runs.

    python sample_runs/small_text.py --folder runs/small
    python sample_runs/small_text.py --folder runs/small --resume runs/small/archive/step=000020
    torchrun --nproc-per-node 2 sample_runs/small_text.py --folder runs/small

Deterministic for a seed, and every checkpoint resumes exactly. `record.py` makes the recorded runs
with it: there is a fault for each of them. A resume never repeats a fault, but for a learning rate
that the script itself was given.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - because this is how everyone writes it
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sdc_guard import Guard, Injector, SdcGuardError, load_checkpoint
from sdc_guard.inject.fault import Fault, InjectionRecord

CONTEXT, WIDTH, HEADS, BLOCKS, BATCH, VOCABULARY = 16, 8, 2, 2, 8, 32
STEPS, EVERY = 100, 20
RATE = 1e-2


@dataclass(frozen=True)
class Plan:
    """A training, and what goes wrong in it.

    Attributes:
        seed: of weights, data order and dropout.
        fault: a bit flip, as of the injector.
        bad_batch: the step whose batch is not what the text says: read wrongly, once.
        rate_spike: the step at which the schedule has a learning rate 60 times too large.
        steps: of the training.
        every: steps from one checkpoint to the next.
    """

    seed: int = 0
    fault: Fault | None = None
    bad_batch: int | None = None
    rate_spike: int | None = None
    steps: int = STEPS
    every: int = EVERY

    def rate(self, step: int) -> float:
        """Learning rate of a step."""
        return RATE * 60 if step == self.rate_spike else RATE


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, bias=False)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.drop = nn.Dropout(0.05)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, _ = x.shape
        normed = self.norm(x)  # attention beside the other layers, as in GPT-J: fewer tensors
        q, k, v = self.qkv(normed).view(batch, time, 3, HEADS, -1).unbind(2)
        heads = [tensor.transpose(1, 2) for tensor in (q, k, v)]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        attended = self.out(mixed.transpose(1, 2).reshape(batch, time, WIDTH))
        return x + self.drop(attended) + self.drop(self.down(F.gelu(self.up(normed))))


class SmallGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight  # tied

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batch_of(seed: int, step: int, rank: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Lines that each count on by a stride of their own, with one symbol in eight at random."""
    generator = torch.Generator().manual_seed((seed * 1000 + step) * 16 + rank)
    begin, stride = (torch.randint(1, 4, (BATCH, 1), generator=generator) for _ in range(2))
    text = (begin + stride * torch.arange(CONTEXT + 1)) % VOCABULARY
    random = torch.randint(VOCABULARY, text.shape, generator=generator)
    text = torch.where(torch.rand(text.shape, generator=generator) < 1 / 8, random, text)
    return text[:, :-1], text[:, 1:]


def misread(batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch as a shard of data gives it that was read at a wrong offset."""
    generator = torch.Generator().manual_seed(1)
    inputs, targets = (torch.randint(VOCABULARY, part.shape, generator=generator) for part in batch)
    return inputs, targets


def loss_fn(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    inputs, targets = batch
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def train(
    plan: Plan,
    run: Path,
    resume: Path | None = None,
    until: int | None = None,
    policy: str = "record",
) -> list[InjectionRecord]:
    """Train from the beginning, or from a checkpoint, up to `until`; what was injected.

    By default up to the plan's last step.
    """
    until = plan.steps if until is None else until
    torch.set_num_threads(1)
    torch.manual_seed(plan.seed)
    several = dist.is_initialized()
    rank = dist.get_rank() if several else 0
    plain = SmallGPT()
    optimizer = torch.optim.AdamW(plain.parameters(), lr=RATE, betas=(0.9, 0.95))
    start = 0
    if resume is not None:
        saved = load_checkpoint(resume)
        plain.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        start = saved["step"]
    model = DistributedDataParallel(plain) if several else plain
    injector = None
    with Guard(
        model,
        optimizer,
        run=run,
        shadow=(batch_of(plan.seed + 1, 0), loss_fn),
        shadow_every=5,
        replicas_every=5,
        first_step=start + 1,
        digest_budget=None,  # every tensor at every step
        probe_every=None,  # no file about this machine
        policy=policy,
        resume=resume_command(plan, several),
    ) as guard:
        if plan.fault and resume is None:
            injector = Injector(model, optimizer, seed=plan.seed, first_step=start + 1)
            injector.add(plan.fault)
        for step in range(start + 1, until + 1):
            torch.manual_seed((plan.seed * 1000 + step) * 16 + rank)  # dropout: of the step alone
            batch = batch_of(plan.seed, step, rank)
            if step == plan.bad_batch and resume is None:
                batch = misread(batch)
            optimizer.param_groups[0]["lr"] = plan.rate(step)
            loss = loss_fn(model, batch)
            loss.backward()
            guard.observe(loss, batch)
            nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if (step % plan.every == 0 or step == until) and rank == 0:
                guard.checkpoint({"model": plain, "optimizer": optimizer}, step)
    if injector is None:
        return []
    injector.close()
    return injector.records


def resume_command(plan: Plan, several: bool) -> str:
    """Relative to the folder above this one, so that it holds for every copy of the project.

    The folder is not called --run: torchrun would take that for one of its own options.
    """
    launcher = "-m torch.distributed.run --standalone --nproc-per-node 2 " if several else ""
    spike = f" --rate-spike {plan.rate_spike}" if plan.rate_spike else ""
    return (
        f"python {launcher}sample_runs/{Path(__file__).name} --folder {{run}} --resume {{ckpt}}"
        f" --until {{step}} --seed {plan.seed}{spike}"
    )


@contextmanager
def ranks() -> Iterator[None]:
    """The process group that a launcher asks for; none without one."""
    if "WORLD_SIZE" not in os.environ:
        yield
        return
    dist.init_process_group("gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, default=Path("runs/small"), help="the run's folder")
    parser.add_argument("--seed", type=int, default=0, help="of weights, data order and dropout")
    parser.add_argument("--resume", type=Path, metavar="CHECKPOINT", help="folder of a checkpoint")
    parser.add_argument("--until", type=int, default=STEPS, metavar="STEP", help="last step")
    parser.add_argument("--rate-spike", type=int, metavar="STEP", help="a wrong learning rate")
    args = parser.parse_args()
    with ranks():
        train(Plan(args.seed, rate_spike=args.rate_spike), args.folder, args.resume, args.until)


if __name__ == "__main__":
    try:
        main()
    except SdcGuardError as error:
        print(f"small_text: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
