"""Healthy streams of several ranks and of a shadow loss, to calibrate and judge thresholds on.

    python benchmarks/calibrate_peers.py record 100 101 102 103 --folder runs/peers
    python benchmarks/calibrate_peers.py judge 100 101 102 103 --folder runs/peers

One process plays the ranks of a data-parallel training of the sample GPT: each has a part of the
batch, and its own gradients are measured before they are averaged, as a guard does. Judge on other
seeds than those that a default was taken from.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sdc_guard.detect.peers import PeerJudge
from sdc_guard.detect.proportion import wilson
from sdc_guard.detect.sensor import FALSE_INCIDENTS
from sdc_guard.detect.step_signals import StepSignals, layer_statistics

RANKS, SHADOW_EVERY, WINDOW, TRIALS = 4, 5, 20, 60
ROOT = Path(__file__).resolve().parents[1]


def sample() -> Any:
    """The module of the sample run."""
    spec = importlib.util.spec_from_file_location("tiny_gpt", ROOT / "sample_runs/tiny_gpt.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def record(seed: int, steps: int, path: Path, garbage: list[int]) -> None:
    """Train, and keep norm, largest value and zeros of (steps, ranks, layers), and the losses.

    Args:
        garbage: steps at which the last rank's tokens are random.
    """
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
        if step in garbage:
            noise = torch.Generator().manual_seed(seed)
            batch[0][-len(batch[0]) // RANKS :].random_(0, gpt.VOCABULARY, generator=noise)
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


def values_of(path: Path) -> NDArray[np.float64]:
    """What ranks exchange, (steps, 3, ranks, layers)."""
    with np.load(path) as held:
        measured, numel = held["measured"], held["numel"]
    ranks = []
    for rank in range(measured.shape[1]):
        norms, largest, zeros = np.moveaxis(measured[:, rank], -1, 0)
        zeros = zeros.astype(np.int64)
        signals = StepSignals(norms, largest, zeros, np.zeros_like(zeros))
        ranks.append(layer_statistics(signals, numel))
    return np.stack(ranks, axis=2)


def judge(seed: int, path: Path) -> None:
    """Print false findings, thresholds, and the share found of norms changed at one step."""
    values = values_of(path)
    steps, _, ranks, layers = values.shape
    now = PeerJudge(ranks, layers, FALSE_INCIDENTS)
    found = now.judge(range(steps - WINDOW), values[:-WINDOW])
    print(f"seed {seed}: {len(found)} findings in {steps - WINDOW} healthy steps")
    for one in found:
        print("   ", one)
    print("    thresholds " + ", ".join(f"{k} {x:.1f}" for k, x in now.thresholds.items()))
    r = np.random.default_rng(seed)
    for factor in (3, 10, 30, 100, 1000, 0.1, 0.01):
        named = 0
        for _ in range(TRIALS):
            part, rank, layer = values[-WINDOW:].copy(), r.integers(ranks), r.integers(layers)
            part[WINDOW // 2, 0, rank, layer] += np.log(factor)
            told = copy.deepcopy(now).judge(range(steps - WINDOW, steps), part)
            named += any((one.rank, one.layer) == (rank, layer) for one in told)
        low, high = wilson(named, TRIALS)
        print(f"    a norm x {factor:<6g} named {named / TRIALS:.2f} ({low:.2f} to {high:.2f})")


def main() -> None:
    """Record or judge the seeds on the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=["record", "judge"])
    parser.add_argument("seeds", type=int, nargs="+")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--garbage", type=int, nargs="*", default=[], metavar="STEP")
    parser.add_argument("--folder", type=Path, default=Path("runs/peers"))
    args = parser.parse_args()
    for seed in args.seeds:
        path = args.folder / f"{seed}.npz"
        if args.what == "record":
            record(seed, args.steps, path, args.garbage)
            print(f"seed {seed}: {args.steps} steps", flush=True)
        else:
            judge(seed, path)


if __name__ == "__main__":
    main()
