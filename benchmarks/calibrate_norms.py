"""The largest ratio and |z| of gradient norms in healthy runs: what the limits stand above.

    python sample_runs/tiny_gpt.py --steps 300 --seed 100 --run runs/healthy/100 --policy record
    python benchmarks/calibrate_norms.py runs/healthy/*

Use other seeds than those that the limits are judged on.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import numpy as np

from sdc_guard import RunReader
from sdc_guard.detect.baseline import RATIO_LIMIT, Z_LIMIT, NormWindow


def largest(run: Path) -> tuple[int, float, float]:
    """Steps, largest ratio and largest |z| of one recorded run."""
    with RunReader(run) as reader:
        rows = reader.rows("SELECT step, layer, norm FROM layers ORDER BY step, layer")
    steps = sorted({step for step, _, _ in rows})
    norms = np.full((steps[-1] + 1, max(layer for _, layer, _ in rows) + 1), np.nan)
    for step, layer, norm in rows:
        norms[step, layer] = norm
    window = NormWindow(norms.shape[1])
    ratio, z = [0.0], [0.0]
    for step in steps:
        row = norms[step]
        judged = window.judgeable(row)
        if judged.any():
            ratio.append(float(window.ratio(row)[judged].max()))
            z.append(float(np.abs(window.robust_z(row)[judged]).max()))
        window.admit(row, np.ones(len(row), dtype=bool))
    return len(steps), max(ratio), max(z)


def main() -> None:
    """Print a table over the runs named on the command line."""
    print(f"{platform.machine()}, numpy {np.__version__}; limits {RATIO_LIMIT:g} and {Z_LIMIT:g}")
    print(f"{'run':<24}{'steps':>8}{'ratio':>10}{'|z|':>10}")
    for name in sys.argv[1:]:
        steps, ratio, z = largest(Path(name))
        print(f"{Path(name).name:<24}{steps:>8}{ratio:>10.1f}{z:>10.1f}")


if __name__ == "__main__":
    main()
