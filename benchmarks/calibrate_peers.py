"""Healthy streams of several ranks and of a shadow loss, to calibrate and judge thresholds on.

    python benchmarks/calibrate_peers.py record 100 101 102 103 --folder runs/peers
    python benchmarks/calibrate_peers.py judge 100 101 102 103 --folder runs/peers

One process plays the ranks of a data-parallel training of the sample GPT: each has a part of the
batch, and its own gradients are measured before they are averaged, as a guard does. Judge on other
seeds than those that a default was taken from.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

RANKS, SHADOW_EVERY = 4, 5
ROOT = Path(__file__).resolve().parents[1]


def sample() -> Any:
    """The module of the sample run."""
    spec = importlib.util.spec_from_file_location("tiny_gpt", ROOT / "sample_runs/tiny_gpt.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def record(seed: int, steps: int, path: Path) -> None:
    """Train, and keep norm, largest value and zeros of (steps, ranks, layers), and the losses."""
    gpt = sample()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model, text = gpt.TinyGPT(), gpt.Text(seed)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, betas=(0.9, 0.95))
    held_out = gpt.Text(seed + 1).next()
    measured: NDArray[np.float64] = np.zeros((steps, RANKS, len(parameters), 3))
    losses, shadow = np.zeros((steps, RANKS)), []
    for step in range(steps):
        batch = text.next()
        total = [torch.zeros_like(p) for p in parameters]
        parts = zip(*(tensor.chunk(RANKS) for tensor in batch), strict=True)
        for rank, part in enumerate(parts):
            loss = gpt.loss_fn(model, part)
            losses[step, rank] = loss.item()
            found = torch.autograd.grad(loss, parameters)
            for layer, gradient in enumerate(found):
                total[layer] += gradient / RANKS
                measured[step, rank, layer] = (
                    gradient.norm().item(),
                    gradient.abs().max().item(),
                    int((gradient == 0).sum()),
                )
        for parameter, gradient in zip(parameters, total, strict=True):
            parameter.grad = gradient
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if step % SHADOW_EVERY == 0:
            model.eval()
            with torch.no_grad():
                shadow.append(gpt.loss_fn(model, held_out).item())
            model.train()
    path.parent.mkdir(parents=True, exist_ok=True)
    numel = np.array([p.numel() for p in parameters])
    np.savez(path, measured=measured, numel=numel, losses=losses, shadow=np.array(shadow))


def main() -> None:
    """Record or judge the seeds on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["record", "judge"])
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--folder", type=Path, default=Path("runs/peers"))
    args = parser.parse_args()
    for seed in args.seeds:
        path = args.folder / f"{seed}.npz"
        if args.what == "record":
            record(seed, args.steps, path)
            print(f"seed {seed}: {args.steps} steps", flush=True)
        else:
            sys.exit("nothing to judge with yet")


if __name__ == "__main__":
    main()
