"""`sdc-guard campaign`: what is left to do of a plan, done, and a summary of the whole."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Final

from ..errors import CommandFailed, UsageError
from .mix import MIXES
from .plan import MODELS, SITES_OF, Clean, Plan, Trial
from .plan import quick as quick_plan
from .progress import Progress, Say
from .results import Results, file_of
from .rows import Row
from .summary import Summary, summarise
from .trial import failed_rows
from .workers import Outcome, Pool, Task
from .workspace import workspace

_PACKAGES: Final = ("sdc-guard-torch", "torch", "numpy", "duckdb", "scikit-learn")


def run_campaign(out: Path, plan: Plan, trials: int, workers: int, say: Say) -> Summary:
    """Do what is left of a campaign, and sum all of it up.

    Args:
        out: the results file, or a folder for it.
        plan: what is done; the file must hold the same one, if it is there.
        trials: how many in the end; fewer than there are already is no error.
        workers: processes, of one thread each.
        say: takes lines about the progress.

    Raises:
        UsageError: see `Results`; what a model needs is not installed.
        CommandFailed: a run without a fault failed, or the machine has no room.
    """
    _check_installed(plan.models)
    path = file_of(out)
    with Results(path, plan.text(), environment()) as results:
        left = _left(plan, trials, results)
        if left:
            with workspace(path) as root, Pool(plan, root, workers) as pool:
                _do(left, plan, results, pool, say)
        return summarise(results.rows)


def plan_of(
    *, seed: int, model: str, mix: str, sites: Sequence[str] = (), quick: bool = False
) -> Plan:
    """The plan that the command's options mean.

    Raises:
        UsageError: an unknown site, or one that the model has not got.
    """
    plan = Plan(
        seed=seed,
        models=MODELS if model == "all" else (model,),
        mixes=MIXES if mix == "both" else (mix,),
    )
    known = tuple(dict.fromkeys(site for name in plan.models for site in SITES_OF[name]))
    if unknown := [site for site in sites if site not in known]:
        raise UsageError(f"no site {unknown[0]!r}", next_step=f"one of {', '.join(known)}")
    if sites:
        plan = replace(plan, sites=tuple(site for site in known if site in sites))
    return quick_plan(plan) if quick else plan


def environment() -> dict[str, str]:
    """Versions and machine, by name."""
    found = {"python": platform.python_version(), "machine": _processor()}
    found["cores"] = str(os.cpu_count())
    for package in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _left(plan: Plan, trials: int, results: Results) -> list[Task]:
    """What is not in the file yet: clean runs, controls, trials."""
    runs, done = results.clean_runs(), results.trials()
    tasks: list[Task] = [run for run in plan.clean_runs() if run not in runs]
    tasks += [trial for trial in plan.controls() if trial.number not in done]
    tasks += [plan.trial(number) for number in range(trials) if number not in done]
    return tasks


def _do(left: list[Task], plan: Plan, results: Results, pool: Pool, say: Say) -> None:
    trials = [task for task in left if isinstance(task, Trial)]
    needed = {(trial.model, trial.seed) for trial in trials}
    twins = [twin for twin in plan.twin_runs() if (twin.model, twin.seed) in needed]
    cleans = [task for task in left if isinstance(task, Clean)]
    for what, tasks in (("runs without a fault", [*twins, *cleans]), ("trials", trials)):
        progress = Progress(what, len(tasks), say)
        for outcome in pool.run(tasks):
            _keep(outcome, results)
            progress.finished(failed=outcome.rows is None)


def _keep(outcome: Outcome, results: Results) -> None:
    task, rows = outcome.task, outcome.rows
    if isinstance(task, Trial):
        if outcome.outside:
            raise CommandFailed(outcome.reason, next_step="make room; what is done stays done")
        results.add(rows or failed_rows(task, outcome.reason), _timing(outcome))
        return
    if rows is None:
        where = f"{task.purpose} run of {task.model}, seed {task.seed}"
        raise CommandFailed(outcome.reason, where=where, next_step="it has no fault: this is a bug")
    if task.purpose == "twin":
        results.add_twin(task, rows, _timing(outcome))
    else:
        results.add(rows, _timing(outcome))


def _timing(outcome: Outcome) -> Row:
    task = outcome.task
    trial, what = (task.number, "trial") if isinstance(task, Trial) else (None, task.purpose)
    return {
        "trial": trial,
        "what": what,
        "seconds": outcome.seconds,
        "cpu": outcome.cpu,
        "rss": outcome.rss,
    }


def _check_installed(models: Sequence[str]) -> None:
    """Raise before the campaign what its first run would be raised by, in another process."""
    if "convnet" in models:
        from .convnet import load_digits

        load_digits()  # not only found: one that cannot be imported is as good as none


def _processor() -> str:
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        name = next((x.partition(":")[2].strip() for x in lines if "model name" in x), name)
    return name
