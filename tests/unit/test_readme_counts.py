"""The README's counts are those of the scoreboard's tables, added up."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
AT_REST = {"weight", "exp_avg", "exp_avg_sq", "step", "buffer"}


def counted() -> Counter[str]:
    """Faults at rest, in files and in what is computed; audits of the latter, and those proven."""
    text = (ROOT / "docs/scoreboard.md").read_text(encoding="utf-8")
    tables = text[text.index("## What finds what") : text.index("## What stays unseen")]
    counts: Counter[str] = Counter()
    for line in tables.splitlines():
        cells = [cell.strip() for cell in line.strip("| ").split("|")]
        if len(cells) != 10 or not cells[1].isdigit():
            continue
        kind = "rest" if cells[0] in AT_REST else "file" if cells[0] == "file" else "computed"
        counts[kind] += int(cells[1])
        if audited := re.fullmatch(r"(\d+) of (\d+)", cells[7]):
            counts["proven"] += int(audited[1])
            counts["audited"] += int(audited[2])
    unseen = re.findall(r": (\d+) of (\d+) faults raised no alarm", text)
    counts["alarms"] = sum(int(all_) - int(missed) for missed, all_ in unseen)
    return counts


def test_the_readmes_counts_are_the_scoreboards() -> None:
    counts = counted()
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    for said in (
        f"{counts['rest'] + counts['file'] + counts['computed']:,} faults in trainings",
        f"{counts['rest']:,} of {counts['rest']:,}, in the same step",
        f"{counts['file']} of {counts['file']}, at the save or a scan",
        f"{counts['alarms']} of {counts['computed']:,} raised an alarm",
        f"{counts['proven']} of {counts['audited']} were proven",
    ):
        assert said in text
