"""Commands that look after a trace: compact, upload."""

from __future__ import annotations

from pathlib import Path

import click

from .group import run_argument


@click.command()
@run_argument
def compact(run: Path) -> None:
    """Fold the trace's small segments into DuckDB files; safe while the run writes.

    What a killed process had not yet published is folded in, too.
    """
    from ..store.left_behind import fold
    from ..store.run_file import RunFile
    from ..store.sealing import seal_run

    RunFile.read(run)
    rows = fold(run)
    written = seal_run(run)
    click.echo(f"{len(written)} seals written" + (f", {rows:,} rows recovered" if rows else ""))


@click.command()
@run_argument
@click.option(
    "--catalog", required=True, help='As DuckLake takes it: postgres:"dbname=sdc host=db".'
)
@click.option("--data", help="Folder or s3:// URL of the lake's data; a new lake needs it.")
@click.option("--ranks", help="Whose rows, 0-7,16 say; all that have a folder by default.")
@click.option(
    "--watch/--once", "watching", default=False, show_default=True,
    help="Go on until ended, also while the catalog fails.",
)  # fmt: skip
@click.option(
    "--every", type=click.FloatRange(min=0, min_open=True), default=10.0, show_default=True,
    help="Seconds between two uploads under --watch.",
)  # fmt: skip
def upload(
    run: Path, catalog: str, data: str | None, ranks: str | None, watching: bool, every: float
) -> None:
    """Commit the trace of RUN to a DuckLake, each segment once and only once.

    It may be killed and started again at any moment, and run on several machines at once. It
    needs DuckDB with its extensions: the extra `lake`, in an environment of
    its own. Exit code 6: the catalog or the data could not be reached; what was committed stays.

    \b
    Examples:
      sdc-guard upload runs/pretrain --catalog postgres:"dbname=sdc host=db" --data s3://sdc/lake
      sdc-guard upload runs/pretrain --catalog postgres:"dbname=sdc host=db" --ranks 0-7 --watch
    """
    from ..lake.location import Lake
    from ..lake.ranks import rank_numbers
    from ..lake.telling import Telling
    from ..lake.uploader import Uploader
    from ..lake.watch import watch
    from ..store.ring import left_rings

    uploader = Uploader(run, Lake.of(catalog, data), rank_numbers(ranks))
    telling = Telling(click.echo, lambda line: click.echo(f"sdc-guard: {line}", err=True))
    if not watching:
        telling.done(uploader.upload(), always=True)
        if left := len(left_rings(run)):
            told = (
                f"{left} killed processes left rows that are not in it: compact, then upload again"
            )
            click.echo(f"sdc-guard: {told}", err=True)
        return
    try:
        watch(uploader, every, telling.done, telling.trouble)
    except KeyboardInterrupt:
        return  # between two transactions or within one: nothing is lost by it
