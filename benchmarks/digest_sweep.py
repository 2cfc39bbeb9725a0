"""Faults that a fingerprint does not see: the digest, torch.hash_tensor and a plain XOR.

    python benchmarks/digest_sweep.py
    python benchmarks/digest_sweep.py --faults 2000 --seed 7 --json sweep.json

Matrices of 64 x 64 elements of eleven dtypes, with the bits of normal numbers, are damaged in
turn: one bit position of 1, 2, 8 or 32 elements flips, or sticks, their signs flip, pairs of
elements or of rows change places. Bits and places go round, so that all come up. A fault that
changes no bit is not counted. A fingerprint misses a fault if it is the same before and after.

Of the digest the table counts what its first sum, H, misses. `torch.hash_tensor` is not there for
every dtype: it counts the faults of those that it takes. Exit code 1: H missed a fault.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from digest_faults import KINDS, Draw, Words, damaged
from machine import line, machine

from sdc_guard.digest import digest_tensor

SIDE = 64
DTYPES = [
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn,
    torch.float8_e5m2, torch.complex64, torch.int64, torch.int32, torch.int16, torch.uint8,
]  # fmt: skip
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
Fingerprint = Callable[[torch.Tensor, Words], Any]


@dataclass
class Cell:
    """Faults of one kind, and how many of those that were shown to it each fingerprint missed."""

    kind: str
    many: int
    faults: int
    missed: dict[str, int]
    shown: dict[str, int]


def fingerprints() -> dict[str, Fingerprint]:
    """By name; each gives what can be compared, or None for a dtype that it does not take."""
    found: dict[str, Fingerprint] = {
        "digest": lambda tensor, _: digest_tensor(tensor).h,
        "hash_tensor": hash_tensor,
        "xor": lambda _, words: int(np.bitwise_xor.reduce(words, axis=None)),
    }
    return found


def hash_tensor(tensor: torch.Tensor, _: Words) -> Any:
    """Its bytes, because a large unsigned number does not become a Python one."""
    try:
        return torch.hash_tensor(tensor).reshape(1).view(torch.uint8).numpy().tobytes()
    except (NotImplementedError, AttributeError):  # not for this dtype; not in this torch
        return None


def sound_words(dtype: torch.dtype, rng: np.random.Generator) -> Words:
    """Words of a matrix of normal numbers; of a complex one, two for each."""
    values = torch.from_numpy(rng.standard_normal((SIDE, SIDE * (2 if dtype.is_complex else 1))))
    if dtype.is_complex:
        values = torch.view_as_complex(values.reshape(SIDE, SIDE, 2))
    elif not dtype.is_floating_point:
        values = values * 50 + 100
    raw = values.to(dtype).view(torch.uint8).numpy()
    return raw.view(UNSIGNED[dtype.to_real().itemsize])


def sweep(faults: int, seed: int) -> list[Cell]:
    """The table.

    Args:
        faults: to draw of each kind, number and dtype.
    """
    rng = np.random.default_rng(seed)
    made = fingerprints()
    matrices = [(dtype, sound_words(dtype, rng)) for dtype in DTYPES]
    cells = []
    for kind, (fault, numbers) in KINDS.items():
        for many in numbers:
            cell = Cell(kind, many, 0, dict.fromkeys(made, 0), dict.fromkeys(made, 0))
            for dtype, words in matrices:
                before = {name: f(tensor_of(words, dtype), words) for name, f in made.items()}
                for number in range(faults):
                    wrong = damaged(words, fault, Draw(number, many), rng)
                    if wrong is not None:
                        count(cell, before, made, tensor_of(wrong, dtype), wrong)
            cells.append(cell)
    return cells


def tensor_of(words: Words, dtype: torch.dtype) -> torch.Tensor:
    """The tensor with these words."""
    return torch.from_numpy(words.view(np.uint8)).view(dtype)


def count(
    cell: Cell,
    before: dict[str, Any],
    made: dict[str, Fingerprint],
    tensor: torch.Tensor,
    words: Words,
) -> None:
    """Show a fault to each fingerprint."""
    cell.faults += 1
    for name, fingerprint in made.items():
        if before[name] is not None:
            cell.shown[name] += 1
            cell.missed[name] += fingerprint(tensor, words) == before[name]


def table(cells: list[Cell]) -> list[str]:
    """Lines: missed of those shown."""
    names = list(cells[0].missed)
    lines = [f"{'fault':<15}{'at once':>8}{'faults':>9}" + "".join(f"{x:>22}" for x in names)]
    for cell in [*cells, total(cells)]:
        shown = [
            f"{cell.missed[name]:,} of {cell.shown[name]:,}" if cell.shown[name] else "-"
            for name in names
        ]
        many = cell.many or ""
        lines.append(
            f"{cell.kind:<15}{many:>8}{cell.faults:>9,}" + "".join(f"{x:>22}" for x in shown)
        )
    return lines


def total(cells: list[Cell]) -> Cell:
    """All cells as one."""
    names = list(cells[0].missed)
    return Cell(
        "all",
        0,
        sum(cell.faults for cell in cells),
        {name: sum(cell.missed[name] for cell in cells) for name in names},
        {name: sum(cell.shown[name] for cell in cells) for name in names},
    )


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=600, help="of each kind, number and dtype")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="file for the results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    here = machine() | {"torch": torch.__version__, "seed": options.seed}
    print(line(here))
    cells = sweep(options.faults, options.seed)
    print("\n".join(table(cells)))
    if options.json:
        content = {"machine": here, "results": [vars(cell) for cell in [*cells, total(cells)]]}
        options.json.write_text(json.dumps(content, indent=2), encoding="utf-8")
    return int(any(cell.missed["digest"] for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
