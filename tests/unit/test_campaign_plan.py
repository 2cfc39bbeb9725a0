"""What the trial of a number is, and which faults a mix draws."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sdc_guard.campaign.command import plan_of
from sdc_guard.campaign.mix import FILE_REALISTIC, REALISTIC, draw_fault
from sdc_guard.campaign.plan import SITES_OF, Plan, quick
from sdc_guard.errors import UsageError
from sdc_guard.inject.fault import Draw


@given(st.integers(0, 2**40), st.integers(0, 10**6))
@example(40227044, 516157)  # its fault sets a NaN, which equals nothing
def test_a_trial_depends_on_seed_and_number_alone(seed: int, number: int) -> None:
    plan = Plan(seed=seed)
    trial = plan.trial(number)
    assert repr(trial) == repr(Plan(seed=seed).trial(number))
    assert trial.seed in plan.twins
    assert trial.snapshot in plan.snapshots
    assert trial.site in SITES_OF[trial.model]
    assert trial.fault is not None
    offset = trial.fault.step - trial.snapshot
    earliest = 5 if trial.audited else 2
    assert offset == plan.after if trial.site == "file" else earliest <= offset < earliest + 3
    width = 8 if trial.site == "file" or (trial.model, trial.site) == ("gpt", "batch") else 32
    assert all(0 <= bit < width for bit in trial.fault.bits or ())


def test_models_mixes_and_sites_take_turns() -> None:
    plan = Plan()
    cells = Counter((t.model, t.site, t.mix) for t in map(plan.trial, range(2 * 82)))
    assert len(cells) == 2 * (10 + 11)
    assert {cell[0]: count for cell, count in cells.items()} == {"gpt": 6, "convnet": 2}
    assert len({(cell[0], count) for cell, count in cells.items()}) == 2


def test_trials_share_no_seed_with_the_runs_that_set_and_judge_thresholds() -> None:
    plan = Plan()
    groups = [set(plan.twins), set(plan.calibration), set(plan.judging)]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 20


def test_each_snapshot_has_its_control_and_each_twin_one_that_is_audited() -> None:
    plan = Plan()
    controls = plan.controls()
    assert [trial.number for trial in controls] == list(range(-1, -len(controls) - 1, -1))
    plain = {(t.model, t.seed, t.snapshot) for t in controls if not t.audited}
    assert len(plain) == 2 * 4 * 3 == sum(not t.audited for t in controls)
    assert {(t.model, t.seed) for t in controls if t.audited} == {x[:2] for x in plain}


def test_the_realistic_mix_has_the_shares_of_the_studies() -> None:
    assert sum(REALISTIC.values()) == sum(FILE_REALISTIC.values()) == 1000
    zeros = sum(share for name, share in REALISTIC.items() if name.startswith("zero"))
    assert 450 <= zeros <= 550
    assert REALISTIC["not finite"] == 10
    rest = 1000 - zeros - REALISTIC["not finite"]
    assert REALISTIC["flip bit"] / rest < 0.4


def test_kinds_come_as_often_as_their_shares_say() -> None:
    drawn = Counter(
        draw_fault("realistic", "gradient", 1, Draw(0, "test", number, 0), width=32).name
        for number in range(4000)
    )
    for name, share in REALISTIC.items():
        spread = (share * (1000 - share) / 1000) ** 0.5
        assert abs(drawn[name] / 4 - share) < 5 * spread / 2 + 1, name


def test_whole_numbers_are_neither_scaled_nor_made_infinite() -> None:
    trials = [t for t in map(Plan().trial, range(82 * 35)) if (t.model, t.site) == ("gpt", "batch")]
    assert len(trials) == 2 * 3 * 35
    assert {trial.fault.change for trial in trials if trial.fault} <= {
        "flip", "zero", "stuck_at_0", "stuck_at_1",
    }  # fmt: skip


def test_every_bit_is_as_likely_in_the_uniform_mix() -> None:
    drawn = Counter(
        draw_fault("uniform", "weight", 1, Draw(0, "test", number, 0), width=32).fault.bits
        for number in range(6400)
    )
    assert set(drawn) == {(bit,) for bit in range(32)}
    assert sum((count - 200) ** 2 / 200 for count in drawn.values()) < 62  # χ²₃₁, 0.1 %


def test_the_text_of_a_plan_says_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    content = json.loads(Plan(seed=7).text())
    assert content["seed"] == 7
    assert content["snapshots"] == [160, 240, 320]
    assert Plan(seed=7).text() != quick(Plan(seed=7)).text()
    before = Plan(seed=7).text()
    monkeypatch.setitem(REALISTIC, "flip bit", 121)  # other trials for the same numbers
    assert Plan(seed=7).text() != before


def test_sites_are_chosen_by_name() -> None:
    plan = plan_of(seed=0, model="all", mix="uniform", sites=("buffer", "weight"))
    assert plan.sites == ("weight", "buffer")
    cells = {(t.model, t.site) for t in map(plan.trial, range(12))}
    assert cells == {("gpt", "weight"), ("convnet", "weight"), ("convnet", "buffer")}
    with pytest.raises(UsageError, match=r"no site 'buffer'.*weight"):
        plan_of(seed=0, model="gpt", mix="both", sites=("buffer",))
