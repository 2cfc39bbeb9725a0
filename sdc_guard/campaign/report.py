"""The scoreboard as Markdown, and how it gets into a page that has other text as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from ..errors import UsageError
from . import cells
from .conditions import conditions
from .outcomes import AFTERWARDS, AUDIT, CHECKS, DIGESTS, LIVE, MANIFEST
from .tables import EFFECTS, FILE_EFFECTS
from .unseen import unseen

BEGIN: Final = "<!-- scoreboard: generated from here on; edit above or below -->"
END: Final = "<!-- scoreboard: end -->"

Numbers = dict[str, Any]


def markdown(numbers: Numbers, figure: str | None = None) -> str:
    """The generated part of a scoreboard.

    Args:
        numbers: of `scoreboard`.
        figure: address of the figure, relative to the page; None for none.
    """
    parts = [_opening(numbers)]
    if figure is not None:
        parts.append(f"![Recall by site, with 95 % intervals]({figure})")
    parts += [*_sites(numbers), *unseen(numbers), *_detectors(numbers), *_parts(numbers)]
    parts += [*_effects(numbers), *_kinds(numbers), *conditions(numbers)]
    return "\n\n".join(parts) + "\n"


def check_place(page: Path) -> None:
    """See that a page has the two markers, if it is there.

    Raises:
        UsageError: it has not, or is not text.
    """
    if page.exists():
        _around(page)


def write_into(page: Path, generated: str) -> None:
    """Put the generated part between the page's two markers; a page that is not there is begun.

    Raises:
        UsageError: the page has no such markers, or is not text.
    """
    before, after = _around(page) if page.exists() else ("# Scoreboard\n\n", "\n")
    page.write_text(f"{before}{BEGIN}\n\n{generated}\n{END}{after}", encoding="utf-8")


def _around(page: Path) -> tuple[str, str]:
    """What is before the first marker, and after the second."""
    try:
        before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    except UnicodeDecodeError as error:
        raise UsageError("this page is not UTF-8 text", where=str(page)) from error
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise UsageError(
            "no place for the scoreboard in this page",
            where=str(page),
            next_step=f"put the lines {BEGIN} and {END} where it belongs",
        )
    return before, after


def _opening(numbers: Numbers) -> str:
    faults, plan = numbers["faults"], numbers["plan"]
    models = " and ".join(plan.get("models", ())) or "one model"
    left = faults["unchanged"] + faults["masked"]
    return (
        f"{faults['injected']:,} faults were injected into trainings of {models}, each beside a"
        f" twin without it. {faults['counted']:,} changed what was trained or saved, and are scored"
        f" here; {left:,} changed no bit, or none that anything depended on. {_budget(numbers)}"
        " Shares are of the scored faults, with 95 % intervals (Wilson)."
    )


def _budget(numbers: Numbers) -> str:
    """What thresholds are set for, and whether there are steps enough to show it."""
    rate = f"one false incident in {1 / numbers['budget']:,.0f} steps"
    allows = f"Each detector's threshold allows {rate}, set on other seeds than it is judged on."
    judged = max((one["budget"]["false"]["steps"] for one in numbers["detectors"]), default=0)
    if judged * numbers["budget"] >= 1:
        return allows
    return (
        f"Each detector's threshold is set to allow {rate}, on other seeds than it is judged on."
        f" The {judged:,} healthy steps of the judging runs are too few to show whether it does:"
        " thresholds and false incidents of so short a campaign say little."
    )


def _site_row(row: Numbers) -> list[str]:
    recall = row["recall"]
    shares = [cells.rate(recall[name]["recall"]) if name in recall else cells.NONE
              for name in ("sensor", "best baseline")]  # fmt: skip
    return [
        f"{row['counted']}",
        *shares,
        *(cells.exact(recall[name]["recall"]) for name in (DIGESTS, CHECKS, MANIFEST)),
        cells.part(recall[AUDIT]["recall"]),
        cells.rate(recall[LIVE]["recall"]),
        cells.rate(recall[AFTERWARDS]["recall"]),
    ]


def _head(numbers: Numbers) -> list[str]:
    best = numbers["best_baseline"] or "none"
    return [
        "faults", "sensor", f"best baseline ({best})", "digests", "other checks", "manifest",
        "audited step", "all live", "and replay",
    ]  # fmt: skip


def _sites(numbers: Numbers) -> list[str]:
    parts = ["## What finds what"]
    parts.append(
        "*Sensor* and *baseline*: statistics of gradients and loss, each with the check for values"
        " that are not finite. *Digests*: the state after a step against that before the next."
        " *Other checks*: the optimizer's invariants. *Manifest*: a checkpoint's bytes against"
        " those that were written. *Audited step*: found where that very step was run again, in a"
        " sample of the trials. *All live*: sensor, digests, checks and manifest together, without"
        " audits. *And replay*: what running the steps again afterwards proves, too."
    )
    places = dict.fromkeys((row["model"], row["mix"]) for row in numbers["sites"])
    for model, mix in places:
        rows = [row for row in numbers["sites"] if (row["model"], row["mix"]) == (model, mix)]
        lines = [[row["site"], *_site_row(row)] for row in rows]
        parts += [f"### {model}, {mix} faults", cells.table(["site", *_head(numbers)], lines)]
    return parts


def _detectors(numbers: Numbers) -> list[str]:
    head = [
        "detector", "false incidents in 10,000 steps", "recall", "in the same step",
        "steps to the alarm: median, p90", "names a layer that was hit", "area of the curve",
        "only the sensor, only this", "p",
    ]  # fmt: skip
    rows = []
    for one in numbers["detectors"]:
        budget, pair = one["budget"], one.get("against_sensor")
        rows.append([
            one["name"], cells.false(budget["false"]), cells.rate(budget["recall"]),
            cells.rate(budget["same_step"]), cells.steps(budget), cells.rate(budget["named"]),
            _areas(one), f"{pair['only_sensor']}, {pair['only_this']}" if pair else cells.NONE,
            cells.chance(pair["p"]) if pair else cells.NONE,
        ])  # fmt: skip
    published = [
        [
            one["name"], cells.number(one["published"]["threshold"]),
            cells.false(one["published"]["false"]), cells.rate(one["published"]["recall"]),
            cells.steps(one["published"]),
        ]
        for one in numbers["detectors"]
        if one["published"]
    ]  # fmt: skip
    return [
        "## Detectors at the same budget",
        "Over the faults of all sites but checkpoint files, which no statistic of gradients can"
        " see. False incidents are those that were counted in the judging runs. *In the same step*:"
        " statistics of gradients are read before the optimizer's step, so that a policy can leave"
        " it out; all other alarms came before the checkpoint at the trial's end. *Area*: under the"
        " curve of recall against false alarms, up to 5 % of healthy windows, where 0.5 is chance,"
        " by model. *Only*: faults that one found and the other missed; *p*: of so unequal numbers"
        " by chance (McNemar, exact).",
        cells.table(head, rows),
        "### With their own thresholds",
        "As published, or as shipped: what each finds, and what that costs in false incidents.",
        cells.table(
            ["detector", "threshold", "false incidents in 10,000 steps", "recall",
             "steps to the alarm: median, p90"],
            published,
        ),
    ]  # fmt: skip


def _areas(one: Numbers) -> str:
    drawn = [curve for curve in one["curves"].values() if curve]
    return " / ".join(f"{curve['area']:.2f}" for curve in drawn) or cells.NONE


def _parts(numbers: Numbers) -> list[str]:
    if not numbers["parts"]:
        return []
    head = ["part", "false incidents in 10,000 steps", "recall alone", "in the same step",
            "names a layer that was hit", "area of the curve"]  # fmt: skip
    rows = [
        [
            one["name"], cells.false(one["budget"]["false"]), cells.rate(one["budget"]["recall"]),
            cells.rate(one["budget"]["same_step"]), cells.rate(one["budget"]["named"]),
            _areas(one),
        ]
        for one in numbers["parts"]
    ]  # fmt: skip
    return [
        "## The sensor, part by part",
        "Each part alone with the whole budget, without the check for values that are not finite;"
        " that has a line of its own, and the curves contain it.",
        cells.table(head, rows),
    ]


def _effects(numbers: Numbers) -> list[str]:
    rows = [[row["effect"] or "none", row["injected"], *_site_row(row)]
            for row in sorted(numbers["effects"], key=_severity)]  # fmt: skip
    return [
        "## By what became of them",
        "*Masked*: no bit of the state ever differed, so there is nothing to find. *Drift*: the"
        " state differs, and norms and losses stay near the twin's. *Spike*: they do not."
        " *Wrong* and *unreadable* are of checkpoint files.",
        cells.table(["effect", "injected", *_head(numbers)], rows),
    ]


def _severity(row: Numbers) -> int:
    """Place of an effect, from the least."""
    known = (*EFFECTS, *FILE_EFFECTS[1:])
    return known.index(row["effect"]) if row["effect"] in known else len(known)


def _kinds(numbers: Numbers) -> list[str]:
    kinds = sorted(numbers["kinds"], key=lambda row: (row["mix"] != "uniform", row["kind"]))
    rows = [[f"{row['kind']} ({row['mix']})", *_site_row(row)] for row in kinds]
    return [
        "## By kind of fault",
        "Of all sites but checkpoint files.",
        cells.table(["kind", *_head(numbers)], rows),
    ]
