"""The command `sdc-guard`, and how both commands report errors.

torch and duckdb are imported inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from .errors import SdcGuardError, UsageError


class OneLineErrors(click.Group):
    """A group of commands in which an error raised on purpose is one line and an exit code.

    With --json it is one object on stdout instead.
    """

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (SdcGuardError, OSError) as raised:
            error = raised if isinstance(raised, SdcGuardError) else _of_system(raised)
            if ctx.meta.get("json"):
                schema = f"{self.name}.{ctx.invoked_subcommand}"
                click.echo(json_text(schema, error=error.as_dict()))
            else:
                click.echo(f"{self.name}: {error}", err=True)
            ctx.exit(error.exit_code)


def _of_system(error: OSError) -> SdcGuardError:
    """A full disk, a missing permission: the system's own words, and the file."""
    return UsageError(error.strerror or str(error), where=str(error.filename or ""))


def json_text(name: str | None, **content: Any) -> str:
    """One JSON object; `name` is put into its schema unless the content has one."""
    schema = {} if name is None else {"schema": {"name": name, "version": 1}}
    return json.dumps({**schema, **content}, indent=1, allow_nan=False)


def _remember_json(ctx: click.Context, _: click.Parameter, value: bool) -> bool:
    ctx.meta["json"] = value
    return value


def json_option(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds --json, also for errors."""
    return click.option(
        "--json", "as_json", is_flag=True, is_eager=True, callback=_remember_json,
        help="Print one JSON object, also for an error.",
    )(command)  # fmt: skip


@contextlib.contextmanager
def _while_somebody_reads() -> Iterator[None]:
    """Ends its block without an error where the reader of our output, `head` say, has left."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _folders_alone(ctx: click.Context, _: click.Parameter, value: Any) -> Any:
    for path in value if isinstance(value, tuple) else (value,):
        if str(path).startswith("ducklake:"):
            raise UsageError(
                f"{ctx.info_name} takes a run's folder, not a lake", where=str(path),
                next_step="sql, export and dashboard read a lake",
            )  # fmt: skip
    return value


run_argument = click.argument("run", type=click.Path(path_type=Path), callback=_folders_alone)
# a folder, or a run in a lake: no Path, which would take a slash from a URL
location_argument = click.argument("run")


@click.group(
    "sdc-guard", cls=OneLineErrors, context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(package_name="sdc-guard-torch")
def main() -> None:
    """Watch training runs for silent data corruption.

    \b
    Examples:
      sdc-guard demo
      sdc-guard dashboard runs/demo
      sdc-guard sql runs/demo "SELECT step, detector FROM alerts"
    """


@main.command()
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
    from .demo.story import tell

    sys.exit(0 if tell(seed, fault, run, click.echo) else 1)


@main.command()
@location_argument
@click.option("--port", type=int, default=8501, show_default=True)
def dashboard(run: str, port: int) -> None:
    """Open the investigation of RUN in a browser, on this machine only.

    RUN is a folder, or ducklake:CATALOG?run=NAME for a run that was uploaded.
    """
    from importlib.util import find_spec

    spec = find_spec("app")
    if find_spec("streamlit") is None or spec is None or not spec.submodule_search_locations:
        raise UsageError(
            "the dashboard's packages are not installed",
            next_step='pip install ".[app]" in a clone of SDC Guard',
        )
    _check_port(port)
    if not run.startswith("ducklake:") and not Path(run).is_dir():
        click.echo(f"sdc-guard: no folder {run} yet; the page waits for it", err=True)
    entry = Path(next(iter(spec.submodule_search_locations))) / "main.py"
    command = [sys.executable, "-m", "streamlit", "run", str(entry)]
    command += ["--server.address", "127.0.0.1", "--server.port", str(port)]
    command += ["--browser.gatherUsageStats", "false", "--server.headless", "true"]
    click.echo(f"http://127.0.0.1:{port}  (Ctrl-C ends it)")
    sys.stdout.flush()
    # in place of this process, so that whoever ends it ends the server
    os.execv(sys.executable, [*command, "--", run])


def _check_port(port: int) -> None:
    import socket

    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise UsageError(
                f"port {port} cannot be used ({error.strerror})", next_step="give another --port"
            ) from None


@main.command()
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
    from .store.opening import open_run

    with open_run(run, attempt) as reader:
        _check_that_it_reads(query)
        result = reader.arrow(query)
        losses = [loss.text for loss in reader.losses()]
    with _while_somebody_reads():
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
    from .plain_json import plain

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


@main.command()
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
    from .store.export import export_duckdb, export_parquet
    from .store.opening import open_run

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


runs_argument = click.argument(
    "runs", nargs=-1, required=True, type=click.Path(path_type=Path), callback=_folders_alone
)


@main.command()
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
    from .watch import command

    if not once and not as_json:
        with _while_somebody_reads():
            command.follow(list(runs), interval, click.echo)
        return
    statuses = command.look_once(list(runs))
    with _while_somebody_reads():
        if as_json:
            content = [status.as_object() for status in statuses]
            click.echo(json_text("sdc-guard.watch", runs=content))
        else:
            command.print_table(statuses, click.echo)
    sys.exit(command.exit_code(statuses))


@main.command()
@runs_argument
@click.option("--port", type=click.IntRange(0, 65535), default=9464, show_default=True)
@click.option("--addr", default="127.0.0.1", show_default=True, help="0.0.0.0 for other machines.")
def metrics(runs: tuple[Path, ...], port: int, addr: str) -> None:
    """Serve the state of RUNS to Prometheus, from their folders, until Ctrl-C."""
    from .delivery.run_metrics import serve_runs

    serve_runs(list(runs), port, addr, click.echo)


@main.command()
@click.option(
    "--run", type=click.Path(path_type=Path), callback=_folders_alone,
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
    from .selftest.command import selftest as try_all

    report = try_all(run, (lambda _: None) if as_json else click.echo)
    if report is None:
        return
    if as_json:
        click.echo(json_text("sdc-guard.selftest", **report.as_object()))
    sys.exit(report.exit_code)


@main.command(context_settings={"allow_interspersed_args": False})
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
        from .inject.file_command import FileOptions, inject_into_file

        if plan is not None:
            raise UsageError("--file with a plan", next_step="give one of them")
        told: Callable[[str], None] = (lambda _: None) if as_json else click.echo
        done = inject_into_file(file, FileOptions(bits=numbers, **options), told)
        if as_json:
            click.echo(json_text("sdc-guard.inject", **done))
        return
    words = command[1:] if command[:1] == ("--",) else command
    if plan is None or not words:
        raise UsageError("what is to be run?", next_step="PLAN.toml -- COMMAND, or --file FILE")
    from .inject.command import run_with_faults

    def say(line: str) -> None:
        click.echo(f"sdc-guard: {line}", err=True)

    sys.exit(run_with_faults(plan, words, say, again=again))


def _numbers(text: str | None) -> tuple[int, ...] | None:
    try:
        return None if text is None else tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UsageError(f"no bits: {text}", next_step="numbers, as in 3 or 3,4,5") from None


@main.command()
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
    from .campaign.command import plan_of, run_campaign
    from .campaign.publish import check_publishable, publish
    from .campaign.results import file_of

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


@main.command()
@run_argument
def compact(run: Path) -> None:
    """Fold the trace's small segments into DuckDB files; safe while the run writes.

    What a killed process had not yet published is folded in, too.
    """
    from .store.left_behind import fold
    from .store.run_file import RunFile
    from .store.sealing import seal_run

    RunFile.read(run)
    rows = fold(run)
    written = seal_run(run)
    click.echo(f"{len(written)} seals written" + (f", {rows:,} rows recovered" if rows else ""))


@main.command()
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
    from .lake.location import Lake
    from .lake.ranks import rank_numbers
    from .lake.telling import Telling
    from .lake.uploader import Uploader
    from .lake.watch import watch
    from .store.ring import left_rings

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


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--clear",
    metavar="DEVICE",
    help="What came before does not count any more. The beginning of its name is enough.",
)
@click.option("--because", help="Why, for whoever reads the ledger.")
@json_option
def strikes(file: Path, clear: str | None, because: str | None, as_json: bool) -> None:
    """List the devices of the ledger FILE, with their strikes and what to do.

    A ledger is what Guard(ledger=FILE) writes to. Exit code 1 if a device is to be excluded.
    """
    from .detect.strikes import HEADING, named, standings
    from .ledger import Ledger, read_ledger

    if because is not None and clear is None:
        raise UsageError("--because without --clear", next_step="--clear names the device")
    entries, _ = read_ledger(file)
    if clear is not None:
        matching = named(clear, entries)
        if len(matching) != 1:
            what = f"{len(matching)} devices begin with" if matching else "no device"
            raise UsageError(
                f"{what} {clear}", where=str(file), next_step="strikes FILE lists them"
            )
        try:
            Ledger(file).clear(matching[0], because or "")
        except OSError as error:
            raise UsageError(
                f"it cannot be written: {error.strerror or error}",
                where=str(file),
                next_step="clear the device where the ledger can be written",
            ) from None
    entries, damaged = read_ledger(file)
    found = standings(entries)
    if as_json:
        content = [one.as_object() for one in found]
        click.echo(json_text("sdc-guard.strikes", devices=content, damaged_lines=damaged))
    else:
        click.echo(HEADING if found else f"nothing in {file} yet")
        for one in found:
            click.echo(one.line())
        if damaged:
            click.echo(f"sdc-guard: {damaged} damaged lines of {file} are passed over", err=True)
    sys.exit(1 if any(one.out for one in found) else 0)


if __name__ == "__main__":
    main(prog_name="sdc-guard")
