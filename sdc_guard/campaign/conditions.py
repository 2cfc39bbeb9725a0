"""Under which conditions a scoreboard was made: seeds, budgets, versions, and what went wrong."""

from __future__ import annotations

from typing import Any

from . import cells

Numbers = dict[str, Any]


def conditions(numbers: Numbers) -> list[str]:
    """The section of the report."""
    plan, faults, controls = numbers["plan"], numbers["faults"], numbers["controls"]
    lines = [
        f"Thresholds were set on healthy runs with the seeds {_seeds(plan, 'calibration')}, and"
        f" judged on others with the seeds {_seeds(plan, 'judging')};"
        f" {plan.get('clean_steps', '?')} steps each, of which the first {numbers['warm_up']} were"
        " only taken in. The data are shorter than the budget needs to be counted where a"
        " threshold says *tail*: it is extrapolated from the largest scores. *Largest*: there were"
        " too few scores for that, or none (∞).",
        f"Faults were drawn from the seed {plan.get('seed', '?')}, in trainings with the seeds"
        f" {_seeds(plan, 'twins')} from the steps {_seeds(plan, 'snapshots')} on,"
        f" {plan.get('after', '?')} steps each. A detector has seen the healthy steps before. An"
        " alarm counts if the twin does not raise it at the same step.",
        f"{controls['count']} trials without a fault: {controls['differing']} differ from their"
        f" twins, {controls['alarmed']} raised alerts of the guard,"
        f" {controls['manifest'] + controls['replay_differs']} differ from their manifest or in"
        " a replay.",
        f"{faults['failed']} trials failed, {faults['unfired']} faults were not reached by the"
        f" training, and the guard recorded {faults['guard_errors']} errors of its own.",
    ]
    lines += [f"{one['count']} failed: {one['error']}." for one in numbers["failed"]]
    lines.append("Every detector stands beside the same check for values that are not finite.")
    parts = ["## Conditions", "\n".join(f"- {line}" for line in lines), *_thresholds(numbers)]
    parts += [*_told(numbers), _environment(numbers)]
    return parts


def _thresholds(numbers: Numbers) -> list[str]:
    models = list(dict.fromkeys(m for one in _all(numbers) for m in one["budget"]["thresholds"]))
    rows = []
    for one in _all(numbers):
        limits = one["budget"]["thresholds"]
        shown = [
            f"{cells.number(limits[m]['value'])} ({limits[m]['method']})" if m in limits else "–"
            for m in models
        ]
        rows.append([one["name"], *shown])
    return ["Thresholds at the budget:", cells.table(["detector", *models], rows)]


def _all(numbers: Numbers) -> list[Numbers]:
    return [*numbers["detectors"], *numbers["parts"]]


def _told(numbers: Numbers) -> list[str]:
    rows = [
        [f"{model}, {kind}", content["incidents"], f"{content['steps']:,}", cells.false(content)]
        for model, kinds in numbers["told"].items()
        for kind, content in kinds.items()
        if kind in ("statistics", "checks")
    ]
    if not rows:
        return []
    head = ["the guard's own alerts", "false incidents", "steps", "in 10,000 steps"]
    return ["What the guard said in the judging runs, as it is shipped:", cells.table(head, rows)]


def _environment(numbers: Numbers) -> str:
    known = ", ".join(f"{name} {value}" for name, value in numbers["environment"].items())
    return f"Run with {known or 'an unknown environment'}."


def _seeds(plan: Numbers, name: str) -> str:
    """`100 to 107`, or one by one."""
    values = [int(value) for value in plan.get(name, ())]
    if len(values) > 2 and values == list(range(values[0], values[-1] + 1)):
        return f"{values[0]} to {values[-1]}"
    return ", ".join(map(str, values)) or "?"
