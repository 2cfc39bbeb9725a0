"""Commands that show what is seen: demo, selftest."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from .group import folders_alone, json_option, json_text


@click.command()
@click.option("--seed", type=int, default=0, show_default=True, help="Draws the fault.")
@click.option(
    "--fault",
    type=click.Choice(["weight", "exp_avg", "exp_avg_sq", "none"]),
    default="weight",
    show_default=True,
    help="Where one bit is flipped.",
)
@click.option(
    "--run", type=click.Path(path_type=Path), default=Path("runs/demo"), show_default=True,
    help="The run's folder; what an earlier demo left there is removed.",
)  # fmt: skip
def demo(seed: int, fault: str, run: Path) -> None:
    """Train a small model, flip one bit, find it.

    Exit code 0 only if what was located is what was injected, or nothing was injected and
    nothing accused.
    """
    from ..demo.story import tell

    sys.exit(0 if tell(seed, fault, run, click.echo) else 1)


@click.command()
@click.option(
    "--run", type=click.Path(path_type=Path), callback=folders_alone,
    help="Compare the known answer with those that this run recorded.",
)  # fmt: skip
@json_option
def selftest(run: Path | None, as_json: bool) -> None:
    """Try on this machine whether faults are seen, replays are exact, and copies arrive.

    Each line is PASS, FAIL, or INCOMPLETE where it could not be tried. Under torchrun the ranks
    also send each other data and compare answers, and rank 0 tells.

    Exit code: 0 all passed, 1 a line failed, 3 none failed and some are incomplete.

    \b
    Examples:
      sdc-guard selftest
      sdc-guard selftest --run runs/pretrain
      torchrun --nproc-per-node 8 -m sdc_guard.cli selftest
    """
    from ..selftest.command import selftest as try_all

    report = try_all(run, (lambda _: None) if as_json else click.echo)
    if report is None:
        return
    if as_json:
        click.echo(json_text("sdc-guard.selftest", **report.as_object()))
    sys.exit(report.exit_code)
