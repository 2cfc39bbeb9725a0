"""From the injected bit to the answer of sdc-bisect, by the commands alone."""

from __future__ import annotations

import json
import shutil
from html import unescape
from pathlib import Path

import preloaded
import pytest
from conftest import SAMPLE, STEPS, bisect, guard_command, run, small_sample, small_source, train

from sdc_guard import RunReader
from sdc_guard.demo import story
from sdc_guard.inject.injector import flip_bit, read_journal


def test_the_alert_is_in_the_same_step_with_tensor_element_and_bits(faulty_run: Path) -> None:
    (injected,) = read_journal(faulty_run)
    (word,) = injected.touched
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
        word.index,
        word.bits,
    )
    assert int(found["before"], 16) == word.before
    assert int(found["after"], 16) == word.after
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
    (word,) = injected.touched
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
    assert (tensor["index"], tensor["bits"]) == (word.index, word.bits)
    assert int(tensor["before"], 16) == word.before
    assert int(tensor["after"], 16) == word.after

    page = tmp_path / "report.md"
    report = bisect("report", faulty_run, "-o", page)
    assert report.code == 0
    assert f"| param | {injected.tensor} | {word.index} | {word.bits} |" in report.out
    assert page.read_text(encoding="utf-8") == report.out
    as_json = bisect("report", faulty_run, "--json").json
    assert as_json["results"][-1]["first_corrupt"] == 27
    told = as_json["headline"]
    assert (told["state"], told["last_clean"], told["first_corrupt"]) == ("corrupt", 26, 27)
    (element,) = told["elements"]
    flipped = [bit["position"] for bit in element["bits"] if bit["before"] != bit["after"]]
    assert sorted(flipped) == sorted(word.bits)
    assert as_json["go_back"]["step"] == 20
    html = tmp_path / "report.html"
    assert bisect("report", faulty_run, "-o", html).code == 0
    written = html.read_text(encoding="utf-8")
    assert f"element {word.index} of param {injected.tensor}" in written
    assert "--resume" in as_json["go_back"]["command"]
    assert as_json["go_back"]["command"] in unescape(written)


def test_a_users_command_finds_the_bracket_that_verify_then_replays(faulty_run: Path) -> None:
    check = "import sys; sys.exit(int(sys.argv[1]) >= 30)"
    answer = bisect("run", faulty_run, "--json", "--", preloaded.python(), "-c", check, "{step}")
    assert answer.code == 1
    assert (answer.json["last_clean"], answer.json["first_corrupt"]) == (20, 30)
    assert not answer.json["proven"]
    verified = bisect("verify", faulty_run, "--recorded", "--json")
    assert verified.json["first_corrupt"] == 27


def test_a_judge_that_crashes_is_no_evidence(clean_run: Path) -> None:
    check = "import sys; open(sys.argv[1])"  # a folder: IsADirectoryError, exit code 1
    answer = bisect("run", clean_run, "--", preloaded.python(), "-c", check, "{ckpt}")
    assert answer.code == 2
    assert "crashed on step 50: IsADirectoryError" in answer.err


@pytest.mark.parametrize(
    ("code", "exit_code", "says"),
    [(3, 2, "ended with 3"), (125, 5, "none of 5 checkpoints can be judged"), (0, 0, "")],
)
def test_exit_codes_of_a_users_command(
    clean_run: Path, code: int, exit_code: int, says: str
) -> None:
    check = f"import sys; sys.exit({code})"
    answer = bisect("run", clean_run, "--", preloaded.python(), "-c", check, "{ckpt}")
    assert answer.code == exit_code
    assert says in answer.err
    assert "Traceback" not in answer.err


def test_skipped_checkpoints_beside_the_culprit_leave_a_range(faulty_run: Path) -> None:
    check = "import sys; s = int(sys.argv[1]); sys.exit(125 if s in (20, 30) else s > 30)"
    answer = bisect("run", faulty_run, "--json", "--", preloaded.python(), "-c", check, "{step}")
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


def test_another_environment_is_not_reproducible_and_accuses_nothing(tmp_path: Path) -> None:
    # the sample as it is: with fewer tokens a step there is nothing for a second thread
    folder = train(tmp_path / "run", "--steps", 6, "--every", 2, script=SAMPLE)
    other = [*resume(SAMPLE), "--threads", 2]
    answer = bisect("verify", folder, "--from", 4, "--to", 6, "--json", "--", *other)
    # two threads add up in another order; where they happen not to, all steps are equal
    assert answer.code in (0, 4), answer.out
    if answer.code == 4:
        assert "threads 1 → 2" in answer.json["error"]["what"]


def test_a_moment_at_rest_is_located(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", "--steps", 30, "--fault", "exp_avg_sq@25", "--fault-seed", 1)
    (injected,) = read_journal(folder)
    (word,) = injected.touched
    (tensor,) = bisect("verify", folder, "--recorded", "--json").json["tensors"]
    assert (tensor["kind"], tensor["name"]) == ("exp_avg_sq", injected.tensor)
    assert (tensor["index"], tensor["bits"]) == (word.index, word.bits)


def test_a_fault_before_the_first_checkpoint_is_located_by_the_trace_alone(tmp_path: Path) -> None:
    folder = train(tmp_path / "run", "--steps", 20, "--fault", "weight@7", "--fault-seed", 4)
    (injected,) = read_journal(folder)
    (word,) = injected.touched
    answer = bisect("verify", folder, "--recorded", "--json")
    assert answer.code == 1, answer.err
    assert (answer.json["first_corrupt"], answer.json["verdict"]) == (7, "undetermined")
    (tensor,) = answer.json["tensors"]
    assert (tensor["name"], tensor["index"]) == (injected.tensor, word.index)
    assert int(tensor["after"], 16) == word.after


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

    judged = bisect("run", folder, "--json", "--", *judge_by_loading())
    assert judged.code == 0  # it loads
    bracket = bisect("run", folder, "--json")
    assert (bracket.json["last_clean"], bracket.json["first_corrupt"]) == (30, 40)
    assert (bracket.json["damaged_files"], bracket.json["state"]["verdict"]) == ([40], "sound")
    flip_bit(weight, element, 19)  # the same change, made by the injector, to compare with
    answer = bisect("verify", folder, "--recorded", "--json")
    assert answer.code == 1, answer.err
    located = answer.json
    assert (located["class"], located["verdict"]) == ("stored bytes", "storage")
    assert (located["last_clean"], located["first_corrupt"]) == (30, 40)
    (tensor,) = located["tensors"]
    assert (tensor["name"], tensor["index"], tensor["bits"]) == ("blocks.1.up.weight", 1000, [19])
    assert tensor["after_value"] == str(weight.view(-1)[element].item())


def test_a_bit_flipped_between_step_and_save_is_not_blamed_on_the_disk(tmp_path: Path) -> None:
    script = tmp_path / "flips_before_saving.py"
    source = small_source()
    at = "                if guard:\n                    guard.checkpoint(state, step)"
    flip = "                model.blocks[0].up.weight.data[3, 5] *= -1 if step == 30 else 1\n"
    assert at in source
    script.write_text(source.replace(at, flip + at), encoding="utf-8")
    folder = tmp_path / "run"
    train(folder, "--steps", 30, script=script)
    answer = bisect("verify", folder, "--json", "--", *resume(small_sample()))
    assert (answer.json["class"], answer.json["verdict"]) == ("stored bytes", "undetermined")
    (tensor,) = answer.json["tensors"]
    assert (tensor["name"], tensor["bits"]) == ("blocks.0.up.weight", [31])


def resume(script: Path) -> list[object]:
    places = ["--run", "{run}", "--resume", "{ckpt}", "--until", "{step}", "--every", 10]
    return [preloaded.python(), script, *places]


def test_a_hole_in_the_record_is_neither_clean_nor_proven(faulty_run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(  # without what earlier replays proved of it
        faulty_run, folder, ignore=shutil.ignore_patterns("bisect", "convictions.jsonl")
    )
    for part in ("digests", "alerts"):
        keep_steps(folder, part, "step NOT BETWEEN 25 AND 28")
    found = bisect("run", folder, "--json")
    assert found.code == 3, found.out
    assert (found.json["last_clean"], found.json["first_corrupt"]) == (20, None)
    assert "lacks digests of 4 steps, the first is 25" in found.json["evidence"][0]
    answer = bisect("verify", folder, "--recorded", "--from", 20, "--json")
    assert answer.code == 3, answer.out
    assert not answer.json["exact"]
    assert not answer.json["proven"]


def keep_steps(folder: Path, table: str, condition: str) -> None:
    """Replace the files of a table by one segment of the rows that fit the condition."""
    from sdc_guard.store.segment_file import encode
    from sdc_guard.store.segments import rank_folder, segment_path

    with RunReader(folder) as reader:
        rows = reader.arrow(f"SELECT * EXCLUDE (rank) FROM {table} WHERE {condition}")
    place = rank_folder(folder, table, 0)
    shutil.rmtree(place)
    place.mkdir()
    segment_path(place, 0).write_bytes(encode(rows))


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ('saved["position"], saved["step"]', 'saved["position"] + 16, saved["step"]'),
        ('model.load_state_dict(saved["model"])', "pass  # keeps the initial weights"),
        (
            "optimizer.zero_grad()\n",
            "optimizer.zero_grad()\n"
            "            if args.resume and step > start + 2:\n"
            '                optimizer.param_groups[0]["lr"] = 0.0005\n',
        ),
        (
            "batch = text.next()\n",
            "batch = text.next()\n"
            "            if args.resume and step > start + 2:\n"
            "                batch = text.next()\n",
        ),
    ],
)
def test_an_inexact_resume_accuses_nothing(
    clean_run: Path, tmp_path: Path, good: str, bad: str
) -> None:
    source = small_source()
    assert good in source
    script = tmp_path / "inexact.py"
    script.write_text(source.replace(good, bad), encoding="utf-8")
    answer = bisect("verify", clean_run, "--from", 30, "--to", 36, "--json", "--", *resume(script))
    assert answer.code == 4, answer.out
    assert "first_corrupt" not in answer.json


def test_a_gradient_fault_is_located_by_replay_from_two_checkpoints(tmp_path: Path) -> None:
    script = tmp_path / "flips_a_gradient.py"
    source = small_source()
    good = "            nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
    assert good in source
    flip = (
        "            if step == 24:\n                model.blocks[2].up.weight.grad[1, 2] *= -8\n"
    )
    script.write_text(source.replace(good, good + flip), encoding="utf-8")
    folder = tmp_path / "run"
    train(folder, "--steps", 30, script=script)
    assert bisect("run", folder).code == 0  # no record of a step can show it
    answer = bisect("verify", folder, "--from", 20, "--json", "--", *resume(small_sample()))
    assert answer.code == 1, answer.err
    assert (answer.json["first_corrupt"], answer.json["class"]) == (24, "optimizer update")
    assert {tensor["name"] for tensor in answer.json["tensors"]} == {"blocks.2.up.weight"}
    assert {tensor["index"] for tensor in answer.json["tensors"]} == {1 * 128 + 2}
    assert {tensor["kind"] for tensor in answer.json["tensors"]} == {
        "param",
        "exp_avg",
        "exp_avg_sq",
    }


def load_raw(path: Path) -> dict:  # type: ignore[type-arg] # because it is whatever torch.load gives
    import torch

    return torch.load(path, weights_only=True)


def judge_by_loading() -> list[object]:
    """What people do today: a checkpoint is good if it loads."""
    code = "import sys, torch; torch.load(sys.argv[1] + '/state.pt', weights_only=True)"
    return [preloaded.python(), "-c", code, "{ckpt}"]


DEMO = """
import pathlib, sys
from sdc_guard import cli
from sdc_guard.demo import story
story.sample_script = lambda: pathlib.Path(sys.argv[1])
cli.main(sys.argv[2:])
"""


def test_the_demo_compares_with_the_injectors_record(tmp_path: Path) -> None:
    # with the small sample in place of the one that it has
    assert story.sample_script() == SAMPLE
    options = ["demo", "--seed", 11, "--fault", "exp_avg", "--run", tmp_path / "demo"]
    answer = run(["-c", DEMO, small_sample(), *options])
    assert answer.code == 0, answer.out + answer.err
    (injected,) = read_journal(tmp_path / "demo")
    (word,) = injected.touched
    row = next(line for line in answer.out.splitlines() if line.startswith("element"))
    assert row.split() == ["element", str(word.index), str(word.index), "ok"]
    assert "Located what was injected." in answer.out


def test_the_demo_fails_when_the_answer_is_another(tmp_path: Path) -> None:
    from sdc_guard.inject.fault import InjectionRecord, Touched

    record = InjectionRecord(0, "weight", 27, 0, 5, "w", (Touched(7, 8, 0),))
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
    assert story._compare([record], right, said.append)
    assert not story._compare([record], {**right, "first_corrupt": 28}, said.append)
    assert not story._compare([record], {**right, "tensors": []}, said.append)
    assert not story._compare([record], {**right, "exact": False}, said.append)
    assert not story._compare([], right, said.append)


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
    command = [small_sample(), "--run", folder, "--every", 10, "--steps", 30, "--policy", "halt"]
    answer = run([*command, "--fault", "weight@17", "--fault-seed", 2])
    assert answer.code == 1
    assert "step 17: carried_digest" in answer.err
    assert "Traceback" not in answer.err
    with RunReader(folder) as reader:
        phases = (
            f"SELECT kind, layer, h, s1, s2 FROM digests WHERE step = 17 AND phase = '{phase}'"
            " ORDER BY kind, layer"
            for phase in ("before", "after")
        )
        found, left = (reader.rows(query) for query in phases)
        assert found == left != []  # the step changed nothing
        newest = "SELECT step, skipped FROM steps ORDER BY step DESC LIMIT 1"
        assert reader.rows(newest) == [(17, True)]
        assert reader.rows("SELECT count(*) FROM alerts") == [(1,)]
    found = bisect("run", folder, "--json")
    assert (found.code, found.json["last_clean"]) == (3, 10)
    assert "changed between step 16 and step 17" in found.json["evidence"][-1]
    located = bisect("verify", folder, "--recorded", "--json")
    assert (located.code, located.json["first_corrupt"]) == (1, 17)
