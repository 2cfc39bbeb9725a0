"""Trains a GPT of 0.8M parameters on the source code of Python's standard library.

    python sample_runs/tiny_gpt.py --steps 200 --run runs/tiny

Deterministic for a seed. Every checkpoint resumes exactly:

    python sample_runs/tiny_gpt.py --run runs/tiny --resume runs/tiny/archive/step=000100

`--resume runs/tiny` takes the run's newest clean checkpoint.

The guard is attached in the three places marked (guard).
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - because this is how everyone writes it
from torch import nn

from sdc_guard import Guard, Injector, SdcGuardError, load_checkpoint

CONTEXT, WIDTH, HEADS, BLOCKS, BATCH, VOCABULARY = 64, 128, 4, 4, 16, 256


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, _ = x.shape
        q, k, v = self.qkv(self.norm_1(x)).view(batch, time, 3, HEADS, -1).unbind(2)
        heads = [tensor.transpose(1, 2) for tensor in (q, k, v)]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(batch, time, WIDTH)))
        return x + self.drop(self.down(F.gelu(self.up(self.norm_2(x)))))


class TinyGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight  # tied
        self.apply(self._initialise)

    @staticmethod
    def _initialise(module: nn.Module) -> None:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Text:
    """Windows of a text in an order fixed by the seed; `position` is all there is to resume."""

    def __init__(self, seed: int) -> None:
        library = Path(sysconfig.get_path("stdlib"))
        content = b"".join(path.read_bytes() for path in sorted(library.glob("[a-h]*.py")))
        self.bytes = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        windows = (len(content) - 1) // CONTEXT
        self.order = torch.randperm(windows, generator=torch.Generator().manual_seed(seed))
        self.position = 0

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        numbers = torch.arange(self.position, self.position + BATCH) % len(self.order)
        self.position += BATCH
        starts = self.order[numbers].unsqueeze(1) * CONTEXT
        window = self.bytes[starts + torch.arange(CONTEXT + 1)].long()
        return window[:, :-1], window[:, 1:]


def loss_fn(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    inputs, targets = batch
    return F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def train(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    model, text = TinyGPT(), Text(args.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95))
    held_out = Text(args.seed + 1).next()
    start = 0
    if args.resume:
        saved = load_checkpoint(args.resume)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        text.position, start = saved["position"], saved["step"]
        torch.set_rng_state(saved["rng"])

    guard: Guard | None = None
    if not args.no_guard:
        script = Path(__file__).resolve()
        guard = Guard(  # (guard) one of three: attach
            model,
            optimizer,
            run=args.run,
            shadow=(held_out, loss_fn),
            shadow_every=10,
            first_step=start + 1,
            digest_budget=None,  # every tensor at every step
            policy=args.policy,
            resume=f"{sys.executable} {script} --run {{run}} --resume {{ckpt}} --until {{step}}"
            f" --seed {args.seed} --threads {args.threads} --every {args.every}",
        )
    if args.fault:
        plan_fault(args, model, optimizer, start + 1)

    with guard or contextlib.nullcontext():
        for step in range(start + 1, args.until + 1):
            batch = text.next()
            loss = loss_fn(model, batch)
            loss.backward()
            if guard:
                guard.observe(loss, batch)  # (guard) two of three: loss and batch of this step
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if step % args.every == 0 or step == args.until:
                state = {
                    "model": model,
                    "optimizer": optimizer,
                    "rng": torch.get_rng_state(),
                    "position": text.position,
                }
                if guard:
                    guard.checkpoint(state, step)  # (guard) three of three: checkpoint
                else:
                    save_plainly(args.run, state, step)
                print(f"step {step:4d}  loss {loss.item():.4f}", flush=True)


def save_plainly(run: Path, state: dict[str, object], step: int) -> None:
    """What a script without a guard does."""
    run.mkdir(parents=True, exist_ok=True)
    content = {
        name: value.state_dict() if hasattr(value, "state_dict") else value
        for name, value in state.items()
    }
    torch.save({"step": step, **content}, run / f"step-{step:06d}.pt")


def plan_fault(
    args: argparse.Namespace, model: nn.Module, optimizer: torch.optim.Optimizer, first_step: int
) -> None:
    """Injects one bit flip, for the demonstration: --fault SITE@STEP, drawn by --fault-seed."""
    from sdc_guard.inject.fault import Fault

    site, _, step = args.fault.partition("@")
    injector = Injector(model, optimizer, seed=args.fault_seed, run=args.run, first_step=first_step)
    injector.add(Fault(site, int(step)))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200, help="steps to train (%(default)s)")
    parser.add_argument("--run", type=Path, default=Path("runs/tiny"), help="the run's folder")
    parser.add_argument("--seed", type=int, default=0, help="of weights, data order and dropout")
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--threads", type=int, default=1, help="more or fewer change the last bits")
    parser.add_argument("--no-guard", action="store_true", help="train without the guard")
    parser.add_argument("--policy", default="warn", choices=["record", "warn", "halt"])
    parser.add_argument("--resume", type=Path, metavar="CHECKPOINT", help="folder of a checkpoint")
    parser.add_argument("--until", type=int, metavar="STEP", help="last step (default: --steps)")
    parser.add_argument("--fault", metavar="SITE@STEP", help="inject a bit flip, e.g. weight@87")
    parser.add_argument("--fault-seed", type=int, default=0)
    args = parser.parse_args()
    args.until = args.steps if args.until is None else args.until
    return args


if __name__ == "__main__":
    try:
        train(arguments())
    except SdcGuardError as error:
        print(f"tiny_gpt: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
