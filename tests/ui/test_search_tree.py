"""A search as a tree and as a table."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from made_sessions import judged

from app.palette import DARK, LIGHT
from app.searching.probes import cost_line, counted, probe_table, replay_table, replays
from app.searching.search_tree import chain_dot, depth, tree, tree_dot
from forensics.reporting.facts import Judged, Told

COURSE = judged((120, "corrupt"), (20, "clean"), (60, "corrupt"), (40, "corrupt"))
VERDICTS = st.sampled_from(["clean", "corrupt", "untestable", "skipped", 'x"] evil'])


def told(found: list[Judged]) -> Told:
    return Told("0001", "bisect/0001", "run", judged=tuple(found))


def test_each_checkpoint_lies_below_the_one_whose_answer_led_to_it() -> None:
    nodes = tree(COURSE)
    assert [(node.order, node.step, node.parent) for node in nodes] == [
        (1, 120, None),
        (2, 20, 120),
        (3, 60, 20),
        (4, 40, 60),
    ]
    assert depth(nodes) == 4
    dot = tree_dot(nodes, 40, LIGHT)
    assert '"20" -> "60" [label=" later "]' in dot
    assert '"60" -> "40" [label=" earlier "]' in dot
    (answer,) = [line for line in dot.splitlines() if "first corrupt one" in line]
    assert "4. step 40\\n✖ corrupt" in answer
    assert "penwidth=3" in answer
    assert LIGHT.corrupt in answer
    assert DARK.corrupt in tree_dot(nodes, 40, DARK)


def test_shape_and_word_tell_what_colour_does() -> None:
    found = judged((10, "clean"), (20, "corrupt"), (30, "untestable"), (40, "skipped"))
    lines = tree_dot(tree(found), None, LIGHT).splitlines()
    drawn = [line for line in lines if "label=" in line and "->" not in line and "step" in line]
    shapes = [re.search(r"shape=(\w+)", line)[1] for line in drawn]  # type: ignore[index]
    assert shapes == ["ellipse", "octagon", "diamond", "box"]
    for line, word in zip(
        drawn, ("● clean", "✖ corrupt", "? untestable", "– skipped"), strict=True
    ):
        assert word in line


def test_a_judge_that_was_asked_again_is_one_node() -> None:
    (node,) = tree(judged((10, "clean"), (10, "corrupt"), (10, "clean")))
    assert node.verdict == "clean"
    assert counted(judged((10, "clean"), (10, "corrupt")))[10] == {"clean": 1, "corrupt": 1}
    assert "● clean 2×, ✖ corrupt" in tree_dot([node], None, LIGHT)


@given(st.lists(st.tuples(st.integers(-5, 400), VERDICTS), max_size=60))
def test_it_is_a_search_tree_of_all_that_was_judged(said: list[tuple[int, str]]) -> None:
    nodes = tree(judged(*said))
    assert {node.step for node in nodes} == {step for step, _ in said}
    by_step = {node.step: node for node in nodes}
    for node in nodes:  # whatever is above lies on the side that its branch says
        below, above = node, by_step.get(node.parent)  # type: ignore[arg-type]
        while above is not None:
            assert above.order < below.order
            assert (node.step > above.step) == (below.step > above.step)
            below, above = above, by_step.get(above.parent)  # type: ignore[arg-type]
    dot = tree_dot(nodes, None, LIGHT)
    assert "evil" not in dot  # nothing of a file becomes a part of the graph
    assert dot.count("->") == max(len(nodes) - 1, 0)


def test_a_verification_is_a_chain() -> None:
    dot = chain_dot([("replay-1", 20, 40), ("replay-2", 20, 33)], 33, LIGHT)
    assert "checkpoint\\nstep 20" in dot
    assert "steps 21 to 40" in dot
    assert "✖ step 33\\ndiffers first" in dot
    assert dot.count("->") == 3
    assert "differs" not in chain_dot([("replay-1", 20, 40)], None, LIGHT)
    assert chain_dot([], None, LIGHT).count("label") == 0


def test_the_table_says_who_judged_what_and_its_cost() -> None:
    event = {"event": "probe", "step": 20, "by": "trace", "mark": {"bytes": 10_100_000}}
    found = judged((20, "clean"), (40, "corrupt"))
    table = probe_table(told(found), [event])
    assert table["checkpoint"] == ["step 20", "step 40"]
    assert table["judged by"] == ["the record", "the record"]
    assert table["answer"] == ["● clean", "✖ corrupt"]
    assert table["seconds"] == ["0\\.5", "0\\.5"]
    assert table["size"] == ["10.1 MB", "–"]
    assert cost_line(told(found), [event]) == ("2 judged in 1 s of checkpoints of 10.1 MB together")
    assert cost_line(told([]), []) == "0 judged"


def test_what_a_file_says_is_no_markdown() -> None:
    odd = Judged(1, "clean", "![x](http://example.com)", "<b>", None, None)
    table = probe_table(told([odd]), [{"event": "probe", "step": "x", "mark": 5}])
    assert "](" not in table["evidence"][0]
    assert table["judged by"] == ["\\<b\\>"]
    assert (table["seconds"], table["size"]) == (["–"], ["–"])


def test_replays_by_name_the_newest_begin_of_each() -> None:
    events = [
        {"event": "verify"},
        {"event": "replay", "name": "replay-1", "start": 20, "until": 40},
        {"event": "stopped", "reason": "interrupted"},
        {"event": "replay", "name": "replay-1", "start": 20, "until": 40},
        {"event": "replay", "name": "odd", "start": "x", "until": None},
    ]
    found = replays(events)
    assert found == [("replay-1", 20, 40)]
    assert replay_table(found, {"replay-1"}, True)["state"] == ["● ended"]
    assert replay_table(found, (), True)["state"] == ["▶ under way"]
    assert replay_table(found, (), False)["state"] == ["◼ interrupted"]
    assert replay_table(found, (), False)["steps"] == ["21 to 40"]
