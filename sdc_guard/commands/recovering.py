"""The commands that bring a run back: restore, prefetch."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .group import json_option, json_text, run_argument, say, while_somebody_reads

if TYPE_CHECKING:
    from ..archive.cache.cache import Cache

_JOBS = click.option(
    "--jobs", type=click.IntRange(min=1), default=min(8, os.cpu_count() or 1), show_default=True,
    help="Threads that read, write and compare.",
)  # fmt: skip


def note(line: str) -> None:
    """A line beside the output."""
    say(f"sdc-guard: {line}", err=True)


@click.command()
@run_argument
@click.option(
    "--to", "to", required=True, type=click.Path(path_type=Path), metavar="DIR",
    help="A new folder.",
)  # fmt: skip
@click.option("--step", type=click.IntRange(min=0), help="The checkpoint of this step, no other.")
@click.option(
    "--checkpoint", type=click.Path(path_type=Path), metavar="PATH",
    help="This checkpoint, no other.",
)  # fmt: skip
@click.option(
    "--even-if-not-clean", is_flag=True,
    help="Restore the named one though it is suspect or untested.",
)  # fmt: skip
@click.option(
    "--cache", type=click.Path(path_type=Path), metavar="DIR",
    help="Read files from there if it has them, and keep them there.",
)  # fmt: skip
@click.option("--cache-size", help="How much the cache holds at most: 50GB.")
@_JOBS
@click.option("--dry-run", is_flag=True, help="Say what would be restored; read no checkpoint.")
@json_option
def restore(
    run: Path, to: Path, step: int | None, checkpoint: Path | None, even_if_not_clean: bool,
    cache: Path | None, cache_size: str | None, jobs: int, dry_run: bool, as_json: bool,
) -> None:  # fmt: skip
    """Copy the newest clean checkpoint of RUN to a new folder, each byte proven on the way.

    Newer ones that are not taken are named, with the reason. One whose bytes turn out to be other
    ones is passed over for the next older. DIR appears when all of it is there and on disk;
    nothing is overwritten. load_checkpoint(DIR) loads it; what another program wrote lies in DIR
    under its own name, with its seal.

    \b
    Exit codes: 0 restored, 2 usage or no room, 5 no clean checkpoint, or the named one is
    damaged or not clean.

    \b
    Examples:
      sdc-guard restore runs/pretrain --to /local/start
      sdc-guard restore runs/pretrain --to /local/start --cache /local/cache --cache-size 50GB
      sdc-guard restore runs/pretrain --to look --step 500 --even-if-not-clean
    """
    from ..archive.recovery.candidates import candidates, of_path
    from ..archive.recovery.choice import allowed, named, newest_first
    from ..archive.recovery.known import check_apart, incidents_of
    from ..archive.recovery.restoring import dry_run as look
    from ..archive.recovery.restoring import restore as bring
    from ..archive.recovery.told import object_of, restored_lines, warning
    from ..errors import UsageError

    if step is not None and checkpoint is not None:
        raise UsageError("--step and --checkpoint name two", next_step="give one of them")
    if even_if_not_clean and step is None and checkpoint is None:
        raise UsageError(
            "--even-if-not-clean is of a checkpoint that is named",
            next_step="give --step or --checkpoint",
        )
    check_apart(to, run, "DIR")
    kept = _cache(cache, cache_size, run, used=not dry_run)
    started = time.perf_counter()
    incidents = incidents_of(run, note)
    tell: Callable[[str], None] = note if as_json else say
    tried: list[Any] = []
    if checkpoint is not None:
        one = allowed(of_path(checkpoint, run, incidents), consent=even_if_not_clean)
        tried = [one]
    elif step is not None:
        tried = [named(candidates(run, incidents), step, consent=even_if_not_clean)]
    else:
        tried = list(newest_first(candidates(run, incidents)))
    if tried and (step is not None or checkpoint is not None):
        if loud := warning(tried[0]):
            note(loud)
        tell = _silent
    seconds = {"choice": time.perf_counter() - started}
    done = look(tried, to) if dry_run else bring(tried, to, jobs=jobs, cache=kept, tell=tell)
    done.seconds = seconds | done.seconds
    with while_somebody_reads():
        if as_json:
            click.echo(json_text("sdc-guard.restore", **object_of(done, to, dry_run=dry_run)))
            return
        if dry_run:
            say(*(one.line() for one in done.passed))
        say(*restored_lines(done, dry_run=dry_run))


@click.command()
@run_argument
@click.option(
    "--cache", required=True, type=click.Path(path_type=Path), metavar="DIR",
    help="A folder on a disk near the devices.",
)  # fmt: skip
@click.option("--cache-size", required=True, help="How much it holds at most: 50GB.")
@click.option(
    "--last", type=click.IntRange(min=1), default=1, show_default=True, metavar="N",
    help="The N newest clean ones, as far as they fit.",
)  # fmt: skip
@_JOBS
@json_option
def prefetch(run: Path, cache: Path, cache_size: str, last: int, jobs: int, as_json: bool) -> None:
    """Bring the newest clean checkpoint of RUN to a cache, so that a restart need not wait for it.

    What is there already is compared byte by byte; what has other bytes is dropped and read again.
    To be run when a node starts, or now and then beside the training.

    \b
    Exit codes: 0 it is there, 2 usage or no room, 5 no clean checkpoint.

    \b
    Examples:
      sdc-guard prefetch runs/pretrain --cache /local/cache --cache-size 50GB
      sdc-guard prefetch runs/pretrain --cache /local/cache --cache-size 1TB --last 3 --json
    """
    from ..archive.recovery.candidates import candidates
    from ..archive.recovery.choice import newest_first
    from ..archive.recovery.known import incidents_of
    from ..archive.recovery.prefetch import prefetch as bring
    from ..archive.recovery.told import object_of_prefetch, prefetched_lines

    kept = _cache(cache, cache_size, run)
    assert kept is not None
    found = candidates(run, incidents_of(run, note))
    tell = note if as_json else say
    done = bring(newest_first(found), kept, count=last, jobs=jobs, tell=tell)
    with while_somebody_reads():
        if as_json:
            content = object_of_prefetch(done, kept.entries.used(), kept.size)
            click.echo(json_text("sdc-guard.prefetch", **content))
            return
        say(*prefetched_lines(done, kept.entries.used(), kept.size))


def _silent(_: str) -> None:
    """The error itself says it."""


def _cache(folder: Path | None, size: str | None, run: Path, *, used: bool = True) -> Cache | None:
    from ..archive.cache.cache import Cache
    from ..archive.planning.units import SIZES, number
    from ..archive.recovery.known import check_apart
    from ..errors import UsageError

    if folder is None and size is None:
        return None
    if folder is None or size is None:
        raise UsageError("--cache and --cache-size belong together", next_step="give both, or none")
    check_apart(folder, run, "the cache")
    most = int(number(size, SIZES, "--cache-size", 0, 1e18))
    return Cache(folder, most, note) if used else None
