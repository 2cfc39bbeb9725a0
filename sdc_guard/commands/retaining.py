"""The command that looks after an archive: keep."""

from __future__ import annotations

import time
from pathlib import Path

import click

from ..archive.retention.names import DEFAULT, NAMES
from .group import json_option, json_text, run_argument, while_somebody_reads


@click.command()
@run_argument
@click.option(
    "--count", type=click.IntRange(min=1), default=24, show_default=True,
    help="Clean checkpoints that are kept beside those that are held.",
)  # fmt: skip
@click.option(
    "--weights", type=click.IntRange(min=0), default=None, metavar="N",
    help="Keep N more as copies of their weights alone, for bisecting and evaluation; nothing "
    "resumes from them. Without it none is made, and those that there are stay.",
)  # fmt: skip
@click.option(
    "--policy", type=click.Choice(NAMES), default=DEFAULT, show_default=True,
    help="Which of them.",
)  # fmt: skip
@click.option(
    "--suspects", type=click.IntRange(min=0), default=2, show_default=True,
    help="Suspect, corrupt and superseded ones that are kept, the newest.",
)  # fmt: skip
@click.option(
    "--horizon", type=click.FloatRange(min=0, min_open=True, max=36500), default=100.0,
    show_default=True, help="Days that corruption goes unnoticed at most.",
)  # fmt: skip
@click.option("--pin", multiple=True, metavar="STEP", help="Keep this one whatever the policy.")
@click.option("--unpin", multiple=True, metavar="STEP", help="Take a pin back.")
@click.option(
    "--apply", "applied", is_flag=True, help="Delete; else it is only said what would be."
)
@json_option
def keep(
    run: Path, count: int, weights: int | None, policy: str, suspects: int, horizon: float,
    pin: tuple[str, ...], unpin: tuple[str, ...], applied: bool, as_json: bool,
) -> None:  # fmt: skip
    """Say which checkpoints of RUN are kept, and delete the others.

    Never deleted are the newest clean one, the one that LATEST points to, pinned ones, what an
    open incident or an open search is about, untested ones of the last day, and what cannot be
    read. It is safe while the run writes.

    \b
    Examples:
      sdc-guard keep runs/pretrain --count 12
      sdc-guard keep runs/pretrain --count 12 --apply
      sdc-guard keep runs/pretrain --count 12 --weights 24 --apply
      sdc-guard keep runs/pretrain --pin 50000
    """
    from dataclasses import replace

    from ..archive.retention.delete import delete_planned
    from ..archive.retention.inventory import Inventory
    from ..archive.retention.pins import change_pins
    from ..archive.retention.plan import Plan, plan
    from ..archive.retention.rule import Rule
    from ..archive.retention.stored import Stored
    from ..archive.retention.thin import Thin, freed_by_thinning, thin_planned
    from ..archive.retention.wording import as_object, not_its_own, summary, table
    from ..archive.save import delete_abandoned
    from ..archive.sealing.listed import listed_in

    inventory = Inventory(run)
    if pin or unpin:
        change_pins(inventory.archive, pin, unpin)
    rule = Rule(count, policy, suspects, horizon, weights=weights)

    def look() -> Plan:
        now = time.time()
        return plan(inventory.look(now), rule, now)

    planned = look()
    rule = replace(rule, spacing=planned.spacing)  # as long as this takes
    gone: list[Stored] = []
    thinned: list[Thin] = []
    left = planned
    if applied:
        delete_abandoned(inventory.archive, time.time())
        thin_planned(inventory.archive, planned, look, thinned.append)
        left = delete_planned(inventory.archive, planned, look, gone.append)
    thinning = 0 if applied else freed_by_thinning(inventory.archive, planned)
    with while_somebody_reads():
        if as_json:
            names = [one.name for one in gone]
            content = as_object(planned) | {"applied": applied, "deleted": names}
            content["bytes_by_thinning"] = thinning
            content["thinned"] = [one.as_dict() for one in thinned]
            click.echo(json_text("sdc-guard.keep", **content))
            return
        for line in table(planned):
            click.echo(line)
        for one in thinned:
            if one.why:
                click.echo(f"{one.stored.name} stays whole: {one.why}")
        freed = sum(one.bytes for one in gone) + sum(one.freed for one in thinned)
        thin = sum(one.copy is not None for one in thinned)
        for line in summary(
            left, deleted=len(gone) if applied else None, freed=freed, thinned=thin,
            thinning=thinning,
        ):  # fmt: skip
            click.echo(line)
        for line in not_its_own(sum(one.path.exists() for one in listed_in(run))):
            click.echo(line)
