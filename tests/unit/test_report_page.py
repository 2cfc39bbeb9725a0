"""The page: it says what the report says, escapes everything and asks nobody for anything."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from reported import finished, report_on
from session_archives import call, counting, made
from traces import make_run, step, whole_steps, write

from forensics.checkpoint import Checkpoint
from forensics.reporting.facts import AlertRow, Attempted, Curve, Report
from forensics.reporting.figures import Figure, Missing, timeline
from forensics.reporting.markdown import markdown
from forensics.reporting.page import page
from forensics.result import Result
from sdc_guard.store.run_file import Attempt

HOSTILE = "<script>alert(1)</script>\"' onload=x \x1b[2J \u202e{{ 7 * 7 }} ![x](http://e.vil/a.png)"
_VOID = {"meta", "br", "link", "img", "input", "hr"}


class Structure(HTMLParser):
    """Tags with their attributes, ids, text, and whether every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in _VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def hostile_run(folder: Path) -> Path:
    attempts = (Attempt(1, 0, 0.0, {"host": HOSTILE}), Attempt(2, 5, 9.0, {"host": "b"}))
    run = make_run(folder, *attempts, names=[HOSTILE, "b", "c", "d"])
    alert = {"step": 3, "layer": 0, "detector": HOSTILE, "severity": "proven"}
    write(run, [
        *whole_steps(0, 8),
        ("alerts", {**alert, "detail": json.dumps({"text": HOSTILE})}),
        ("events", {"step": 0, "kind": "capture", "detail": HOSTILE}),
    ])  # fmt: skip
    result = Result("verify", 2, 3, exact=True, proven=True, evidence=(HOSTILE,), kind=HOSTILE)
    tensor = {"kind": "param", "name": HOSTILE, "index": 0, "bits": [31], "before": "0x3f800000",
              "after": "0xbf800000", "before_value": "1.0", "after_value": "-1.0"}  # fmt: skip
    session = finished(run, {**result.as_dict(), "tensors": [tensor]})
    session.note("probe", step=3, verdict=HOSTILE, reason=HOSTILE, by=HOSTILE)
    return run


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Report:
    report = report_on(hostile_run(tmp_path_factory.mktemp("hostile") / "run"))
    held = Checkpoint(3, Path(f"/{HOSTILE}"), "torch", "corrupt", (HOSTILE,))
    return replace(report, name=HOSTILE, place=HOSTILE, checkpoints=(held,), unseen=(HOSTILE,),
                   damaged=((HOSTILE, HOSTILE),))  # fmt: skip


def test_hostile_names_do_nothing(hostile: Report) -> None:
    text = page(hostile)
    found = Structure(text)
    assert not {"script", "img", "link", "iframe"} & {tag for tag, _ in found.tags}
    assert not any(name.startswith("on") for _, attrs in found.tags for name in attrs)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "{{ 7 * 7 }}" in "".join(found.text)  # no template of theirs is filled in
    assert "<script>alert(1)</script>" in "".join(found.text)  # it is shown, as text


def test_hostile_names_do_nothing_in_markdown(hostile: Report) -> None:
    text = markdown(hostile)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert not re.search(r"(?<!\\)<script", text)
    assert not re.search(r"!(?<!\\)\[x\]", text)


def test_the_page_asks_no_other_machine(hostile: Report) -> None:
    text = page(replace(hostile, name="a"))
    found = Structure(text)
    for tag, attributes in found.tags:
        for name in ("src", "href", "xlink:href", "srcset", "action", "data", "poster"):
            value = attributes.get(name)
            assert value is None or value.startswith("#"), (tag, name, value)
        for target in re.findall(r"url\(([^)]*)\)", attributes.get("style") or ""):
            assert target.startswith("#")
    (style,) = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert "url(" not in style
    assert "@import" not in style
    policies = [a for t, a in found.tags if t == "meta" and "http-equiv" in a]
    assert (policies[0]["content"] or "").startswith("default-src 'none'")


def test_the_page_can_be_read_without_eyes(hostile: Report) -> None:
    found = Structure(page(hostile))
    tags = [tag for tag, _ in found.tags]
    assert tags.count("h1") == tags.count("main") == 1
    assert tags.count("table") == tags.count("caption")
    ids = [str(attributes["id"]) for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    named = {target for _, a in found.tags for target in (a.get("aria-labelledby") or "").split()}
    named |= {(a.get("href") or "")[1:] for tag, a in found.tags if tag == "a"}
    assert named <= set(ids)
    (drawing,) = (a for tag, a in found.tags if tag == "svg")
    assert drawing["role"] == "img"
    assert {"title", "desc"} <= set(tags[tags.index("svg") :])


def test_the_page_says_what_the_report_says(tmp_path: Path) -> None:
    report = report_on(hostile_run(tmp_path / "run"))
    report = replace(report, headline=replace(report.headline, sentence="This is the answer."))
    text = " ".join("".join(Structure(page(report)).text).split())
    assert "This is the answer." in text
    bits = re.findall(r"before 0x3f800000 ?([01 ]+) after 0xbf800000 ?([01 ]+)", text)
    assert [one.replace(" ", "") for one in bits[0]] == ["0" + "01111111" + 23 * "0",
                                                         "1" + "01111111" + 23 * "0"]  # fmt: skip
    assert "2027-01-15 08:00:00 UTC" in text
    assert "proven" in text


def test_the_figure_is_the_same_for_the_same_numbers(tmp_path: Path) -> None:
    report = report_on(hostile_run(tmp_path / "run"))
    one, two = timeline(report), timeline(report)
    assert isinstance(one, Figure)
    assert one == two
    assert not re.search(r"#(?!m|p|h)[0-9a-f]{6}\b", one.body)  # every colour is a variable
    assert "var(--corrupt)" in one.body


def test_a_single_step_and_no_number_at_all(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    write(run, [step(0, loss=float("nan"))])
    report = report_on(run)
    assert "1 values of the loss are NaN or infinite" in page(report)
    empty = report_on(make_run(tmp_path / "empty"))
    assert isinstance(timeline(empty), Missing)
    assert "is absent: nothing with a step is known" in page(empty)


def test_without_matplotlib_the_page_says_what_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = report_on(hostile_run(tmp_path / "run"))
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = page(report)
    assert "over the steps” is absent: matplotlib cannot be imported" in text
    assert "<svg" not in text


def test_a_large_run_makes_a_small_page(tmp_path: Path) -> None:
    report = report_on(hostile_run(tmp_path / "run"))
    steps = np.arange(2_000) * 10
    values = np.random.default_rng(0).random(2_000)  # seed 0
    points = tuple(zip(steps.tolist(), values.tolist(), strict=True))
    long = "model.layers.4999.self_attention.linear_qkv.weight " * 4
    large = replace(
        report,
        curves=tuple(Curve(n, points) for n in ("loss", "gradient norm", "state digested")),
        alerts=tuple(AlertRow(n, "x", "proven", long, 5_000, (), 1.0, 1.0, long)
                     for n in range(200)),
        alert_steps=tuple((n * 50, "proven") for n in range(400)),
        checkpoints=tuple(Checkpoint(n, Path(f"/a/{n}"), "torch", "suspect", (f"{n} {long}",))
                          for n in range(20_000)),
        attempts=tuple(Attempted(n, n, 0.0, {f"k{i}": long for i in range(40)}, (), None)
                       for n in range(1_000)),
    )  # fmt: skip
    size = len(page(large).encode())
    assert size < 2_000_000, size


def test_the_command_writes_by_the_suffix(tmp_path: Path) -> None:
    run = hostile_run(tmp_path / "run")
    out = tmp_path / "report.html"
    done = call("report", run, "-o", out)
    assert (done.code, done.out) == (0, "")
    assert out.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert call("report", run, "--format", "html").out.startswith("<!doctype html>")
    assert call("report", run, "--format", "json").json["run"] == "run"
    assert call("report", run).out.startswith("# Run run\n")
    assert call("report", run, "--format", "md", "--json").code == 2


def test_the_command_reports_on_an_archive_and_on_a_session(tmp_path: Path) -> None:
    archive = made(tmp_path / "archive", range(10, 60, 10))
    kept = tmp_path / "kept"
    call("run", archive, "--session", kept, *counting(tmp_path, 30))
    assert call("report", archive, "--format", "json").json["sessions"] == []
    for place in (kept, kept / "0001"):
        told = call("report", "--session", place, "--format", "json").json
        assert told["place"] == str(archive)
        assert (told["headline"]["last_clean"], told["headline"]["first_corrupt"]) == (20, 30)
        assert told["headline"]["state"] == "suspect"
        assert told["go_back"]["step"] == 20
        assert told["sessions"][0]["log"][0].startswith("# sdc-bisect log")
    other = made(tmp_path / "other", (1, 2))
    refused = call("report", other, "--session", kept)
    assert refused.code == 2
    assert "the session there is of" in refused.err
    nobody = call("report", "--session", tmp_path / "nothing")
    assert nobody.code == 2
    assert "give PATH, too" in nobody.err
