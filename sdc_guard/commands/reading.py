"""Commands that read runs: sql, export, watch, metrics."""

from __future__ import annotations

import contextlib
import csv
import sys
from pathlib import Path
from typing import Any

import click

from ..errors import UsageError
from .group import json_option, json_text, location_argument, runs_argument, while_somebody_reads


@click.command()
@location_argument
@click.argument("query")
@click.option("--attempt", type=int, help="The run as it was during this attempt (newest).")
@json_option
def sql(run: str, query: str, attempt: int | None, as_json: bool) -> None:
    """Run a SELECT over the tables of RUN; CSV on stdout.

    RUN is a folder, or ducklake:CATALOG?run=NAME for a run that was uploaded.

    Tables: steps, layers, digests, shadow, alerts, incidents, checkpoints, events, layer_names,
    attempts. Where a resume repeated steps they hold the newest attempt; `every.steps` and so on
    hold all. The views whole_layers and whole_steps put the gradients of all ranks together.

    In CSV NULL is an empty field and NaN is nan. With --json `rows` holds an array a row, NULL is
    null, and what JSON has no number for is the string "NaN", "Infinity" or "-Infinity".
    """
    from ..store.opening import open_run

    with open_run(run, attempt) as reader:
        _check_that_it_reads(query)
        result = reader.arrow(query)
        losses = [loss.text for loss in reader.losses()]
    with while_somebody_reads():
        (_print_json if as_json else _print_csv)(result, losses)
    for loss in losses:
        click.echo(f"sdc-guard: {loss}", err=True)


def _check_that_it_reads(query: str) -> None:
    import duckdb

    with contextlib.suppress(duckdb.Error):  # what is no SQL is told when it is asked
        kinds = {statement.type for statement in duckdb.extract_statements(query)}
        if kinds - {duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN}:
            raise UsageError("only a query that reads is answered", where=query)


def _print_csv(result: Any, _: list[str]) -> None:
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(result.column_names)
    for batch in result.to_batches():
        writer.writerows(zip(*(column.to_pylist() for column in batch), strict=True))


def _print_json(result: Any, losses: list[str]) -> None:
    from ..plain_json import plain

    columns = [column.to_pylist() for column in result.itercolumns()]
    click.echo(
        json_text(
            "sdc-guard.sql",
            columns=result.column_names,
            types=[str(field.type) for field in result.schema],
            rows=plain(list(zip(*columns, strict=True))),
            missing=losses,
        )
    )


@click.command()
@location_argument
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "--parquet", type=click.Path(path_type=Path), help="A folder for a Parquet file a table."
)
@click.option("--attempt", type=int, help="The run as it was during this attempt (newest).")
@click.option("--force", is_flag=True, help="Replace what an earlier export left there.")
def export(
    run: str, file: Path | None, parquet: Path | None, attempt: int | None, force: bool
) -> None:
    """Write the tables of RUN into one DuckDB FILE, for people without this tool.

    The tables are those of `sdc-guard sql`, and `meta`: the run's name, the format's version, and
    files that are damaged, whose rows are missing. DuckDB 1.4 and later open the file.

    \b
    Examples:
      sdc-guard export runs/demo demo.duckdb
      sdc-guard export runs/demo --parquet demo/
    """
    from ..store.export import export_duckdb, export_parquet
    from ..store.opening import open_run

    if file is None and parquet is None:
        raise UsageError("where to?", next_step="give a FILE.duckdb, --parquet DIR, or both")
    with open_run(run, attempt) as reader:
        if file is not None:
            export_duckdb(reader, file, replace=force)
            click.echo(f"{file} written")
        if parquet is not None:
            export_parquet(reader, parquet, replace=force)
            click.echo(f"{parquet} written")
        for loss in reader.losses():
            click.echo(f"sdc-guard: {loss.text}", err=True)


@click.command()
@runs_argument
@click.option("--once", is_flag=True, help="Print once and end.")
@click.option(
    "--interval", type=click.FloatRange(min=0.1), default=2.0, show_default=True, help="Seconds."
)
@json_option
def watch(runs: tuple[Path, ...], once: bool, interval: float, as_json: bool) -> None:
    """Follow RUNS, folders of runs or folders that hold them, until Ctrl-C.

    In a terminal a table is redrawn; elsewhere a line tells of each alert or change of state.
    A run that is not there yet is waited for. --json prints once.

    Exit code with --once or --json: 0 without an open incident, 1 with one, 2 if there is none
    but a run is not there or cannot be read.
    """
    from ..watch import command

    if not once and not as_json:
        with while_somebody_reads():
            command.follow(list(runs), interval, click.echo)
        return
    statuses = command.look_once(list(runs))
    with while_somebody_reads():
        if as_json:
            content = [status.as_object() for status in statuses]
            click.echo(json_text("sdc-guard.watch", runs=content))
        else:
            command.print_table(statuses, click.echo)
    sys.exit(command.exit_code(statuses))


@click.command()
@runs_argument
@click.option("--port", type=click.IntRange(0, 65535), default=9464, show_default=True)
@click.option("--addr", default="127.0.0.1", show_default=True, help="0.0.0.0 for other machines.")
def metrics(runs: tuple[Path, ...], port: int, addr: str) -> None:
    """Serve the state of RUNS to Prometheus, from their folders, until Ctrl-C."""
    from ..delivery.run_metrics import serve_runs

    serve_runs(list(runs), port, addr, click.echo)
