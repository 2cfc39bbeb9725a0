"""From the injected bit to the answer of sdc-bisect, by the commands alone."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from conftest import SAMPLE, STEPS, bisect, guard_command, run, train

from sdc_guard import RunReader
from sdc_guard.inject.injector import flip_bit, read_journal


def test_the_alert_is_in_the_same_step_with_tensor_element_and_bits(faulty_run: Path) -> None:
    (injected,) = read_journal(faulty_run)
    with RunReader(faulty_run) as reader:
        ((step, name, severity, detail),) = reader.rows(
            "SELECT step, name, severity, detail FROM alerts JOIN layer_names USING (layer)"
            " WHERE detector = 'carried_digest'"
        )
        statuses = reader.rows("SELECT step, status FROM checkpoints ORDER BY step")
    found = json.loads(detail)
    assert (step, name, severity) == (27, injected.tensor, "proven")
    assert (found["kind"], found["index"], found["bits"]) == (
        "param",
        injected.index,
        [injected.bit],
    )
    assert int(found["before"], 16) == injected.before
    assert int(found["after"], 16) == injected.after
    assert statuses == [
        (10, "clean"),
        (20, "clean"),
        (30, "suspect"),
        (40, "suspect"),
        (50, "suspect"),
    ]


def test_index_lists_the_archive(faulty_run: Path) -> None:
    answer = bisect("index", faulty_run, "--json")
    assert answer.code == 0
    assert answer.json["schema"] == {"name": "sdc-bisect.index", "version": 1}
    rows = answer.json["checkpoints"]
    assert [row["step"] for row in rows] == [10, 20, 30, 40, 50]
    assert [row["status"] for row in rows] == ["clean"] * 2 + ["suspect"] * 3
    assert all("step 27" in row["reasons"][0] for row in rows[2:])


def test_run_then_verify_then_report(faulty_run: Path, tmp_path: Path) -> None:
    (injected,) = read_journal(faulty_run)
    bracket = bisect("run", faulty_run, "--json")
    assert bracket.code == 1
    assert (bracket.json["last_clean"], bracket.json["first_corrupt"]) == (20, 30)
    assert bracket.json["exact"]
    assert bracket.json["proven"]
    assert {probe["step"] for probe in bracket.json["probes"]} <= {10, 20, 30, 40, 50}

    answer = bisect("verify", faulty_run, "--recorded", "--json")
    assert answer.code == 1, answer.err
    located = answer.json
    assert (located["last_clean"], located["first_corrupt"]) == (26, 27)
    assert located["exact"]
    assert (located["class"], located["verdict"], located["rank"]) == (
        "state at rest",
        "intermittent",
        0,
    )
    (tensor,) = located["tensors"]
    assert (tensor["kind"], tensor["name"]) == ("param", injected.tensor)
    assert (tensor["index"], tensor["bits"]) == (injected.index, [injected.bit])
    assert int(tensor["before"], 16) == injected.before
    assert int(tensor["after"], 16) == injected.after

    page = tmp_path / "report.md"
    report = bisect("report", faulty_run, "-o", page)
    assert report.code == 0
    assert f"| param | {injected.tensor} | {injected.index} | [{injected.bit}] |" in report.out
    assert page.read_text(encoding="utf-8") == report.out
    as_json = bisect("report", faulty_run, "--json").json
    assert as_json["results"][-1]["first_corrupt"] == 27


def test_a_users_command_finds_the_bracket_that_verify_then_replays(faulty_run: Path) -> None:
    check = "import sys; sys.exit(int(sys.argv[1]) >= 30)"
    answer = bisect("run", faulty_run, "--json", "--", sys.executable, "-c", check, "{step}")
    assert answer.code == 1
    assert (answer.json["last_clean"], answer.json["first_corrupt"]) == (20, 30)
    assert not answer.json["proven"]
    verified = bisect("verify", faulty_run, "--recorded", "--json")
    assert verified.json["first_corrupt"] == 27


@pytest.mark.parametrize(
    ("code", "exit_code", "says"),
    [(3, 2, "ended with 3"), (125, 5, "none of 5 checkpoints can be judged"), (0, 0, "")],
)
def test_exit_codes_of_a_users_command(
    clean_run: Path, code: int, exit_code: int, says: str
) -> None:
    check = f"import sys; sys.exit({code})"
    answer = bisect("run", clean_run, "--", sys.executable, "-c", check, "{ckpt}")
    assert answer.code == exit_code
    assert says in answer.err
    assert "Traceback" not in answer.err


def test_skipped_checkpoints_beside_the_culprit_leave_a_range(faulty_run: Path) -> None:
    check = "import sys; s = int(sys.argv[1]); sys.exit(125 if s in (20, 30) else s > 30)"
    answer = bisect("run", faulty_run, "--json", "--", sys.executable, "-c", check, "{step}")
    assert answer.code == 3
    assert (answer.json["last_clean"], answer.json["first_corrupt"]) == (10, 40)
    assert not answer.json["exact"]
    assert sorted(answer.json["skipped"]) == [20, 30]


def test_a_clean_run_is_not_accused(clean_run: Path) -> None:
    answer = bisect("run", clean_run, "--json")
    assert answer.code == 0
    assert (answer.json["last_clean"], answer.json["first_corrupt"]) == (STEPS, None)
    shadow = bisect("run", clean_run, "--oracle", "shadow", "--json")
    assert shadow.json["first_corrupt"] is None
    replayed = bisect("verify", clean_run, "--recorded", "--from", 30, "--json")
    assert replayed.code == 0, replayed.err
    assert replayed.json["last_clean"] == STEPS
    assert "20 steps replayed, 156 tensors a step equal" in replayed.json["evidence"][0]
    with RunReader(clean_run) as reader:
        assert reader.rows("SELECT count(*) FROM alerts") == [(0,)]


def test_another_environment_is_not_reproducible_and_accuses_nothing(clean_run: Path) -> None:
    command = [sys.executable, SAMPLE, "--run", "{run}", "--resume", "{ckpt}", "--until", "{step}"]
    other = [*command, "--threads", 2, "--every", 10]
    answer = bisect("verify", clean_run, "--from", 20, "--to", 25, "--json", "--", *other)
    # two threads add up in another order; where they happen not to, all steps are equal
    assert answer.code in (0, 4), answer.out
    if answer.code == 4:
        assert "threads 1 → 2" in answer.json["error"]["what"]


def test_an_incomplete_resume_is_told_apart_from_a_fault(clean_run: Path, tmp_path: Path) -> None:
    script = tmp_path / "forgets_the_moments.py"
    source = SAMPLE.read_text(encoding="utf-8")
    broken = source.replace('optimizer.load_state_dict(saved["optimizer"])', "pass")
    assert broken != source
    script.write_text(broken, encoding="utf-8")
    command = [sys.executable, script, "--run", "{run}", "--resume", "{ckpt}", "--until", "{step}"]
    answer = bisect("verify", clean_run, "--from", 20, "--to", 22, "--json", "--", *command)
    assert answer.code in (1, 4)
    assert answer.code == 4, answer.json
    assert "error" in answer.json


def test_a_moment_at_rest_is_located(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", "--steps", 30, "--fault", "exp_avg_sq@25", "--fault-seed", 1)
    (injected,) = read_journal(folder)
    (tensor,) = bisect("verify", folder, "--recorded", "--json").json["tensors"]
    assert (tensor["kind"], tensor["name"]) == ("exp_avg_sq", injected.tensor)
    assert (tensor["index"], tensor["bits"]) == (injected.index, [injected.bit])


def test_a_fault_before_the_first_checkpoint_is_located_by_the_trace_alone(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", "--steps", 20, "--fault", "weight@7", "--fault-seed", 4)
    (injected,) = read_journal(folder)
    answer = bisect("verify", folder, "--recorded", "--json")
    assert answer.code == 1, answer.err
    assert (answer.json["first_corrupt"], answer.json["verdict"]) == (7, "undetermined")
    (tensor,) = answer.json["tensors"]
    assert (tensor["name"], tensor["index"]) == (injected.tensor, injected.index)
    assert int(tensor["after"], 16) == injected.after


def test_a_bit_of_a_stored_checkpoint_is_storage_and_not_the_training(
    clean_run: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(clean_run, folder)
    path = folder / "archive" / "step=000040" / "state.pt"
    weight = load_raw(path)["model"]["blocks.1.up.weight"]
    pattern = weight.numpy().tobytes()
    content = bytearray(path.read_bytes())
    at = content.index(pattern)
    element = 1000
    content[at + 4 * element + 2] ^= 0x08  # bit 19 of a little-endian fp32
    path.write_bytes(content)

    bracket = bisect("run", folder, "--json", "--", *judge_by_loading())
    assert bracket.code == 0  # the newest loads, so a judge of the newest sees nothing
    flip_bit(weight, element, 19)  # the same change, made by the injector, to compare with
    for later in ("step=000050",):
        shutil.rmtree(folder / "archive" / later)
    answer = bisect("verify", folder, "--recorded", "--json")
    assert answer.code == 1, answer.err
    located = answer.json
    assert (located["class"], located["verdict"]) == ("storage", "storage")
    assert (located["last_clean"], located["first_corrupt"]) == (30, 40)
    (tensor,) = located["tensors"]
    assert (tensor["name"], tensor["index"], tensor["bits"]) == ("blocks.1.up.weight", 1000, [19])
    assert tensor["after_value"] == str(weight.view(-1)[element].item())


def load_raw(path: Path) -> dict:  # type: ignore[type-arg] # because it is whatever torch.load gives
    import torch

    return torch.load(path, weights_only=True)


def judge_by_loading() -> list[object]:
    """What people do today: a checkpoint is good if it loads."""
    code = "import sys, torch; torch.load(sys.argv[1] + '/state.pt', weights_only=True)"
    return [sys.executable, "-c", code, "{ckpt}"]


def test_the_demo_compares_with_the_injectors_record(tmp_path: Path) -> None:
    answer = guard_command("demo", "--seed", 11, "--fault", "exp_avg", "--run", tmp_path / "demo")
    assert answer.code == 0, answer.out + answer.err
    (injected,) = read_journal(tmp_path / "demo")
    row = next(line for line in answer.out.splitlines() if line.startswith("element"))
    assert row.split() == ["element", str(injected.index), str(injected.index), "ok"]
    assert "Located what was injected." in answer.out


def test_the_demo_fails_when_the_answer_is_another(tmp_path: Path) -> None:
    from sdc_guard.demo.story import _compare
    from sdc_guard.inject.fault import InjectionRecord

    record = InjectionRecord("weight", 27, 0, 5, "w", 7, 3, 8, 0)
    right = {
        "first_corrupt": 27,
        "exact": True,
        "rank": 0,
        "tensors": [
            {
                "kind": "param",
                "name": "w",
                "index": 7,
                "bits": [3],
                "before": "0x8",
                "after": "0x0",
            }
        ],
    }
    said: list[str] = []
    assert _compare([record], right, said.append)
    assert not _compare([record], {**right, "first_corrupt": 28}, said.append)
    assert not _compare([record], {**right, "tensors": []}, said.append)
    assert not _compare([record], {**right, "exact": False}, said.append)
    assert not _compare([], right, said.append)


def test_the_demo_leaves_a_folder_alone_that_is_not_its_own(tmp_path: Path) -> None:
    precious = tmp_path / "mine.txt"
    precious.write_text("precious")
    answer = guard_command("demo", "--run", tmp_path)
    assert answer.code == 2
    assert answer.err.count("\n") == 1
    assert precious.read_text() == "precious"


def test_sql_prints_csv(faulty_run: Path) -> None:
    answer = guard_command("sql", faulty_run, "SELECT count(*) AS n, max(step) AS last FROM steps")
    assert answer.out == f"n,last\n{STEPS},{STEPS}\n"
    wrong = guard_command("sql", faulty_run, "SELECT nothing FROM steps")
    assert wrong.code == 2
    assert wrong.err.count("\n") == 1


def test_halt_stops_before_the_corrupted_step_is_applied(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [SAMPLE, "--run", folder, "--every", 10, "--steps", 30, "--policy", "halt"]
    answer = run([*command, "--fault", "weight@17", "--fault-seed", 2])
    assert answer.code == 1
    assert "step 17: carried_digest" in answer.err
    assert "Traceback" not in answer.err
    with RunReader(folder) as reader:
        assert reader.rows("SELECT max(step) FROM digests WHERE phase = 'after'") == [(16,)]
        assert reader.rows("SELECT count(*) FROM alerts") == [(1,)]
