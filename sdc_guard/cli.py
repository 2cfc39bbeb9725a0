"""The command `sdc-guard`.

torch and duckdb are imported inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import click

from .commands.dashboard import dashboard
from .commands.examining import doctor
from .commands.gating import verify_archive
from .commands.group import OneLineErrors
from .commands.injecting import campaign, inject
from .commands.judging import check_log, strikes
from .commands.keeping import compact, upload
from .commands.planning import plan
from .commands.proving import demo, selftest
from .commands.reading import export, metrics, sql, watch
from .commands.recovering import prefetch, restore
from .commands.retaining import keep


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


for _command in (
    demo,
    doctor,
    dashboard,
    sql,
    export,
    watch,
    metrics,
    selftest,
    inject,
    campaign,
    plan,
    compact,
    upload,
    keep,
    restore,
    prefetch,
    strikes,
    check_log,
    verify_archive,
):
    main.add_command(_command)


if __name__ == "__main__":
    main(prog_name="sdc-guard")
