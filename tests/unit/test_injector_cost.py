"""The benchmark of the injector: every site has an arm, and no fault fires in it."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import hook_models
import hook_overhead
import injector_cost

from sdc_guard.inject.fault import SITES


def test_every_site_of_one_process_has_an_arm() -> None:
    model = hook_models.TASKS["resnet"].make_model()
    arms = injector_cost.plans(model)
    assert set(SITES) - set(arms) == {"collective", "file"}
    assert {fault.site for fault in arms["all sites"]} == set(SITES) & set(arms)
    assert "buffer" not in injector_cost.plans(hook_models.TASKS["mlp"].make_model())


def test_a_short_run() -> None:
    arguments = [
        "--models",
        "mlp",
        "--rounds",
        "2",
        "--steps",
        "1",
        "--arms",
        "bare again",
        "batch",
    ]
    args = hook_overhead.arguments(arguments)
    task = hook_models.TASKS["mlp"]
    result = hook_overhead.summary("mlp", task, injector_cost.measure(task, args), args)
    assert [arm["arm"] for arm in result["arms"]] == ["bare again", "batch"]
    assert result["rounds"] == 2
