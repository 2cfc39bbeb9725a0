"""The command `sdc-bisect`.

torch and duckdb are imported inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from sdc_guard.commands.group import OneLineErrors, json_option, json_text, say
from sdc_guard.errors import EXIT_ARCHIVE_INCOMPLETE

from .commands.diff import diff_command
from .commands.doctor import doctor_command
from .commands.place import PLACE
from .commands.report import report_command
from .commands.run import run_command
from .commands.scan import scan_command
from .commands.seal import seal_command
from .commands.session_begin import replay_command, reset_command, start_command
from .commands.session_judge import bad_command, good_command, skip_command, undo_command
from .commands.session_told import log_command, status_command
from .commands.verify import verify_command


@click.group(
    "sdc-bisect",
    cls=OneLineErrors,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(package_name="sdc-guard-torch")
def main() -> None:
    """Find the first corrupted step of a training run.

    \b
    Exit codes: 0 clean or done, 1 corruption located, 2 usage or input, 3 a range only,
    4 not reproducible, 5 archive incomplete, 130 stopped by Ctrl-C.

    \b
    Examples:
      sdc-bisect index runs/pretrain
      sdc-bisect scan runs/pretrain
      sdc-bisect diff step-100.pt step-200.pt
      sdc-bisect run runs/pretrain
      sdc-bisect run runs/pretrain -- python check.py {ckpt}
      sdc-bisect start archive --good 1000 --bad 9000
      sdc-bisect good archive 5000
      sdc-bisect verify runs/pretrain -- python train.py --resume {ckpt} --until {step}
      sdc-bisect report runs/pretrain -o report.html
    """


for command in (
    scan_command,
    diff_command,
    seal_command,
    doctor_command,
    run_command,
    verify_command,
    start_command,
    good_command,
    bad_command,
    skip_command,
    undo_command,
    status_command,
    log_command,
    replay_command,
    reset_command,
    report_command,
):
    main.add_command(command)


@main.command("index")
@click.argument("path", type=PLACE)
@json_option
def index_command(path: Path, as_json: bool) -> None:
    """List the checkpoints in PATH by step, with their status.

    PATH is a run's folder, an archive, a folder of checkpoints, or one checkpoint. Steps are
    compared as numbers; the one that a checkpoint holds counts before the one in its name. No
    tensors are read here; `scan` judges the bytes.

    Below the list it says where checkpoints seem to be missing, which step has several, and what
    was passed over: pipes, links to nothing, empty folders.

    \b
    Exit codes: 0 all can be read, 2 usage, or no such path, 5 one cannot be, or there is none.

    \b
    Examples:
      sdc-bisect index runs/pretrain
      sdc-bisect index checkpoints/step-500.pt --json
    """
    from .index import index
    from .index_text import index_lines
    from .passed_over import passed_over
    from .spacing import duplicates, gaps

    found = index(path)
    remarks = [*gaps([checkpoint.step for checkpoint in found]), *duplicates(found)]
    remarks += passed_over(path, found)
    if as_json:
        rows = [checkpoint.as_dict() for checkpoint in found]
        click.echo(json_text("sdc-bisect.index", checkpoints=rows, remarks=remarks))
    else:
        say(*index_lines(found), *remarks)
    unreadable = [str(checkpoint.step) for checkpoint in found if not checkpoint.readable]
    if unreadable:
        click.echo(f"sdc-bisect: cannot be judged: step {', '.join(unreadable)}", err=True)
        sys.exit(EXIT_ARCHIVE_INCOMPLETE)


if __name__ == "__main__":
    main(prog_name="sdc-bisect")
