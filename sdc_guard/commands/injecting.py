"""Commands that make faults: inject, campaign."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from ..errors import UsageError
from .group import json_option, json_text

_OF_FILE = {
    "seed", "offset", "tensor", "index", "bits", "change", "value", "exponent", "out", "in_place",
    "revert",
}  # fmt: skip
_SPELT = {"in_place": "--in-place", "out": "-o"}


@click.command(context_settings={"allow_interspersed_args": False})
@click.argument("plan", required=False, type=click.Path(path_type=Path))
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--again", is_flag=True, help="Also what the run's journal says has fired before.")
@click.option("--file", type=click.Path(path_type=Path), help="Corrupt this file instead.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of --file: draws the rest.")
@click.option("--offset", type=int, help="Of --file: the byte.")
@click.option("--tensor", help="Of --file: a tensor in it, by name or pattern.")
@click.option("--index", type=int, help="Of --tensor: the element, row by row.")
@click.option("--bit", "--bits", "bits", help="Of --file: 3, or 3,4,5; 0 is the lowest.")
@click.option(
    "--change", default="flip", show_default=True,
    type=click.Choice(["flip", "stuck_at_0", "stuck_at_1", "zero", "set", "scale"]),
    help="Of --file: set needs --value, scale --exponent.",
)  # fmt: skip
@click.option("--value", type=float, help="Of --change set.")
@click.option("--exponent", type=int, help="Of --change scale: times 2 to this power.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Of --file: a copy to corrupt.")
@click.option("--in-place", is_flag=True, help="Of --file: corrupt the file itself.")
@click.option("--revert", is_flag=True, help="Of --file: put back what its record says.")
@json_option
def inject(
    plan: Path | None, command: tuple[str, ...], again: bool, file: Path | None, as_json: bool,
    bits: str | None, **options: Any,
) -> None:  # fmt: skip
    """Run COMMAND with the faults of PLAN in its training, or corrupt a file.

    The Guard in the command's script takes the faults. After the command has ended, what fired is
    printed on stderr, from inject/journal.jsonl in the run's folder. With --file the ground truth
    is FILE.injected.json. See docs/injector.md.

    Exit code: the command's (128 + signal); if that is 0, 7 if nothing fired.

    \b
    Examples:
      sdc-guard inject plan.toml -- python train.py
      sdc-guard inject --file state.pt --tensor model.head.weight --bit 30 --in-place
      sdc-guard inject --file state.pt --revert
    """
    numbers = _numbers(bits)
    if file is not None:
        from ..inject.file_command import FileOptions, inject_into_file

        if plan is not None:
            raise UsageError("--file with a plan", next_step="give one of them")
        _refuse({"again"} & _given(), "with --file")
        told: Callable[[str], None] = (lambda _: None) if as_json else click.echo
        done = inject_into_file(file, FileOptions(bits=numbers, **options), told)
        if as_json:
            click.echo(json_text("sdc-guard.inject", **done))
        return
    _refuse(_OF_FILE & _given(), "without --file")
    words = command[1:] if command[:1] == ("--",) else command
    if plan is None or not words:
        raise UsageError("what is to be run?", next_step="PLAN.toml -- COMMAND, or --file FILE")
    from ..inject.command import run_with_faults

    def say(line: str) -> None:
        click.echo(f"sdc-guard: {line}", err=True)

    sys.exit(run_with_faults(plan, words, say, again=again))


def _given() -> set[str]:
    """Names of the options on the command line."""
    context = click.get_current_context()
    told = click.core.ParameterSource.COMMANDLINE
    return {name for name in context.params if context.get_parameter_source(name) is told}


def _refuse(names: set[str], where: str) -> None:
    if names:
        name = min(names)
        raise UsageError(f"{_SPELT.get(name, '--' + name)} {where}", next_step="leave it out")


def _numbers(text: str | None) -> tuple[int, ...] | None:
    try:
        return None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"no bits: {text}", next_step="numbers, as in 3 or 3,4,5") from None


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--trials", type=click.IntRange(min=0), default=400, show_default=True)
@click.option(
    "--model", type=click.Choice(["gpt", "convnet", "all"]), default="all", show_default=True
)
@click.option(
    "--mix", type=click.Choice(["uniform", "realistic", "both"]), default="both",
    show_default=True, help="Single bits, or what hardware does.",
)  # fmt: skip
@click.option("--site", "sites", multiple=True, help="Only this site; may be given again.")
@click.option("--seed", type=int, default=0, show_default=True, help="Draws the faults.")
@click.option(
    "--workers", type=click.IntRange(min=1), help="Processes of one thread each (one a core)."
)
@click.option("--quick", is_flag=True, help="A small plan, of minutes.")
@click.option(
    "--report", "page", type=click.Path(path_type=Path), metavar="PAGE",
    help="Score every detector, and write the report into this Markdown page, a figure beside it.",
)  # fmt: skip
@json_option
def campaign(
    out: Path, trials: int, model: str, mix: str, sites: tuple[str, ...], seed: int,
    workers: int | None, quick: bool, page: Path | None, as_json: bool,
) -> None:  # fmt: skip
    """Inject many faults, each beside a run without it, and tell which of them what has found.

    OUT is a DuckDB file, or a folder for one. What is finished is kept there: the same command
    goes on where it was, also after kill -9, and more --trials make it longer.

    Exit code 1: a run without a fault differed from its twin, or a fault in the state at rest or
    in a checkpoint's bytes was found by nothing.

    \b
    Examples:
      sdc-guard campaign campaign.duckdb --quick --trials 60
      sdc-guard campaign campaign.duckdb --model gpt --trials 3000
      sdc-guard campaign campaign.duckdb --report docs/scoreboard.md
    """
    from ..campaign.command import plan_of, run_campaign
    from ..campaign.publish import check_publishable, publish
    from ..campaign.results import file_of

    if page is not None:
        check_publishable(page)
    plan = plan_of(seed=seed, model=model, mix=mix, sites=sites, quick=quick)
    done = run_campaign(
        out, plan, trials, workers or os.cpu_count() or 1,
        lambda line: click.echo(f"sdc-guard: {line}", err=True),
    )  # fmt: skip
    scored = {}
    if page is not None:
        click.echo(f"sdc-guard: scoring every detector for {page}", err=True)
        scored = {"scoreboard": publish(file_of(out), page)}
    if as_json:
        click.echo(json_text("sdc-guard.campaign", **done.as_object(), **scored))
    else:
        for line in done.lines():
            click.echo(line)
    sys.exit(0 if done.sound else 1)
