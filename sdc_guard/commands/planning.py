"""The command that plans checkpoints: plan."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ..errors import UsageError
from .group import folders_alone, json_option, json_text, while_somebody_reads


@click.command()
@click.argument("source", required=False, type=click.Path(path_type=Path), callback=folders_alone)
@click.option("--size", help="Of a checkpoint: 420GB. Without it that of SOURCE.")
@click.option("--parameters", help="Of the model, instead of a size: 70e9.")
@click.option("--bytes-per-parameter", help="In a checkpoint.")
@click.option("--devices", help="How many train, the failure of any of which stops all.")
@click.option("--price", help="Dollars for a GB a month.")
@click.option("--write", help="Bandwidth to where checkpoints are kept: 10GB/s.")
@click.option("--load", help="Bandwidth from there.")
@click.option("--mtbf", help="Mean time between failures of one device: 50000h.")
@click.option("--device-hour", help="Dollars for an hour of one device.")
@click.option("--incidents", help="Corruptions seen late, a month.")
@click.option(
    "--latency",
    help="How late: 1h..100d is log-uniform, 1h,2d,30d were measured, trace: those of SOURCE.",
)
@click.option("--detect", help="How long until a failure is noticed.")
@click.option("--restart", help="How long from there until the job is up, without the load.")
@click.option("--step-time", help="Of a training step. Without it that of SOURCE.")
@click.option("--stall", help="How long the training waits for a checkpoint; for all of the write.")
@click.option("--every", help="Save so often, instead of at the optimum: 1h.")
@click.option("--keep", help="Keep so many, instead of the best number.")
@click.option("--cache-load", help="Bandwidth from a cache near the devices: 100GB/s.")
@click.option("--cache-size", help="How much fits into it.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), help="Draw the chart: plan.svg, .png, .pdf."
)
@json_option
def plan(source: Path | None, output: Path | None, as_json: bool, **texts: str | None) -> None:
    """Plan how often to save, how many checkpoints to keep and which, and what it costs.

    SOURCE is a run, an archive or a checkpoint: its size is taken, and of a run the time of a step.
    Numbers have units: GB, GiB, GB/s, s, min, h, d. What was not given and has to be assumed is
    listed at the end.

    \b
    Examples:
      sdc-guard plan --size 420GB --devices 512 --incidents 1
      sdc-guard plan --parameters 70e9 --devices 10000 --mtbf 1000h --stall 5s
      sdc-guard plan runs/pretrain --devices 64 --latency trace -o plan.svg
    """
    from ..archive.planning.as_json import as_object
    from ..archive.planning.chart import text_chart
    from ..archive.planning.drawing import check_suffix, draw
    from ..archive.planning.inputs import from_measured, inputs_of
    from ..archive.planning.plan import make_plan
    from ..archive.planning.shown import lines
    from ..archive.planning.sources import latencies_of, measured_of

    if output is not None:
        check_suffix(output)
    latency = None
    if texts["latency"] == "trace":
        if source is None:
            raise UsageError("--latency trace without a run", next_step="give the run's folder")
        latency = from_measured(latencies_of(source), str(source))
    sized = texts["size"] is not None or texts["parameters"] is not None
    measured = {} if source is None else measured_of(source, size=not sized)
    made = make_plan(inputs_of(texts, measured, latency))
    if output is not None:
        draw(made, output)
    with while_somebody_reads():
        if as_json:
            click.echo(json_text("sdc-guard.plan", **as_object(made)))
            return
        plain = not _writes("█")
        chart = text_chart(made.inputs.latency, made.keeping.ages, plain=plain)
        for line in (*lines(made), "", *chart):
            click.echo(line)
        if output is not None:
            click.echo(f"\n{output} written")


def _writes(character: str) -> bool:
    """Whether the terminal, or what stands for it, takes the character."""
    try:
        character.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return False
    return True
