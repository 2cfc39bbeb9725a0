"""Which checkpoint? The searches of the run: started, followed, stopped and answered here."""

from urllib.parse import quote

import streamlit as st

from app import address, answer_box, answers, proof, queries, sessions
from app.frame import errors_told
from app.navigation import onward
from app.palette import palette_of
from app.records import Checkpoint
from app.searching import searches, starting
from app.searching.probes import MAX_ROWS, cost_line, probe_table, replay_table, replays
from app.searching.search_answer import Answer, answer_of, answer_table
from app.searching.search_tree import MAX_DEPTH, MAX_NODES, chain_dot, depth, tree, tree_dot
from app.searching.searches import SYMBOLS, Search
from app.source import Source, current_source
from app.wording import count, plain, status_text, utc_text
from sdc_guard.lake.location import is_lake
from sdc_guard.store.trace_reader import TraceReader

_FOLLOWED, _LOOKED = 1.0, 3.0  # seconds from look to look: at a search that runs, and for one
_SESSIONS = 10


def chosen(names: list[str], usual: str | None) -> str | None:
    """The session that the address names, else the usual one; then the address has it.

    Left out of it while it is the usual one, a link would lead to another one later.
    """
    if usual is None:
        return None
    wanted = st.query_params.get("session")
    if wanted and wanted not in names:
        st.warning(f"There is no session {plain(wanted)}; shown is {usual}.")
    if wanted not in names:
        st.query_params["session"] = usual
    if len(names) == 1:
        return names[0]
    others = [name for name in names if name != usual]
    name = address.choice("Session", "session", [usual, *others], width=240)
    st.query_params["session"] = name or usual  # the choice leaves the usual one out
    return name


def state_line(search: Search) -> None:
    """What the session is, and how far."""
    told, standing = search.told, search.standing
    said = {
        "answered": "answered",
        "running": "running",
        "stopped": f"stopped: {search.stopped_by}",
        "open": "open: a user judges in it (sdc-bisect good, bad, skip)",
        "unreadable": "cannot be read",
    }[standing]
    parts = [f"**{SYMBOLS[standing]} {plain(said)}**", f"sdc-bisect {plain(told.command)}"]
    if told.began is not None:
        parts.append(f"began {plain(utc_text(told.began))}")
    if told.finished is not None:
        parts.append(f"finished {plain(utc_text(told.finished))}")
    if search.worker is not None:
        owner = search.worker.owner
        parts.append(plain(f"process {owner.pid} on {owner.host}"))
    st.markdown(" · ".join(parts))
    for note in told.notes:
        st.warning(plain(f"{note[:1].upper()}{note[1:]}."))
    if not told.is_current:
        st.warning("The run was started again since: this is about the run as it was.")


def asked(search: Search, kept: list[Checkpoint]) -> None:
    """The search's table."""
    found = replays(search.events)
    if found or search.command == "verify":
        replayed(search, found)
        return
    st.subheader("What was asked", anchor=False)
    if not search.told.judged:
        st.write("No checkpoint is judged yet.")
        return
    convicted = {one.step for one in kept if one.convicted}
    st.table(probe_table(search.told, search.events, convicted), hide_index=True)
    if len(search.told.judged) > MAX_ROWS:
        st.caption(f"The newest {MAX_ROWS} of {count(len(search.told.judged), 'judging')}.")
    st.caption(plain(cost_line(search.told, search.events)) + ".")


def drawn(search: Search) -> None:
    """The search's tree."""
    nodes = tree(search.told.judged)
    if len(nodes) > MAX_NODES or depth(nodes) > MAX_DEPTH:
        st.caption(f"{count(len(nodes), 'checkpoint')}: too many to draw; the table has them.")
        return
    first = None if search.told.result is None else search.told.result["first_corrupt"]
    words = "; ".join(f"step {node.step}: {node.verdict}" for node in nodes)
    st.graphviz_chart(
        tree_dot(nodes, first, palette_of(st.context.theme.type)),
        alt=f"The search as a tree. {words}",
    )


def replayed(search: Search, found: list[tuple[str, int, int]]) -> None:
    """The course of a verification."""
    st.subheader("What was replayed", anchor=False)
    if not found:
        st.write("Nothing yet.")
        return
    told, running = search.told, search.standing == "running"
    first = None if told.result is None else told.result["first_corrupt"]
    if first is not None and not found[0][1] < first <= found[0][2]:
        first = None
    st.graphviz_chart(
        chain_dot(found, first, palette_of(st.context.theme.type)),
        alt="The verification: " + ", ".join(f"{n}, steps {a + 1} to {b}" for n, a, b in found),
    )
    st.table(replay_table(found, searches.ended_replays(told), running), hide_index=True)
    if running and (text := searches.newest_output(told)):
        st.caption("What the replay printed last:")
        st.code(text, language=None)


def answered(found: Answer | None) -> None:
    """The verdict and its bracket."""
    if found is None:
        return
    answer_box.box(found.state, found.sentence)
    answer_box.figures(
        {
            "Last clean step": (found.last_clean, ""),
            "First corrupt step": (found.first_corrupt, ""),
            "Certainty": (found.certainty, ""),
        }
    )
    onward("bisect", found.step, **({"layer": found.layer} if found.layer else {}))


def grounds(found: Answer | None) -> None:
    """What the verdict rests on, and what would disprove it."""
    if found is None:
        return
    for title, texts in (
        ("It rests on", found.rests_on),
        ("It does not claim more", found.limits),
        ("What would disprove it", found.disproof),
    ):
        if texts:
            st.markdown(f"**{title}**\n\n" + "\n".join(f"- {plain(text)}" for text in texts))


def session(reader: TraceReader, name: str) -> None:
    """One session: its state, its answer, its course."""
    search = searches.search_of(reader.run, name, len(reader.run_file.attempts))
    found = answer_of(search.told, {layer.name: layer.dtype for layer in reader.run_file.named})
    # each part has a place of its own: what is new in one does not move the others
    state, top, middle, table, course = (st.container() for _ in range(5))
    with state:
        state_line(search)
    with top:
        answered(found)
    is_tree = search.command != "verify" and bool(search.told.judged)
    with middle:
        left, right = st.columns([2, 1]) if is_tree and found is not None else (middle, middle)
        with left:
            grounds(found)
        if is_tree:
            with right:
                drawn(search)
    with table:
        if search.told.result is not None and search.told.result["tensors"]:
            st.table(answer_table(search.told.result["tensors"]), hide_index=True)
    with course:
        asked(search, queries.checkpoints(reader))


def unsearched(reader: TraceReader) -> None:
    """What is known before anybody searched."""
    kept = queries.checkpoints(reader)
    said = answers.which(kept)
    answer_box.box(said.state, said.sentence, said.reasons, signed=said.state != "unknown")
    onward("bisect")
    when_saved(kept)


def in_a_lake(reader: TraceReader) -> None:
    """What a lake knows of checkpoints, and where the rest is."""
    st.info(
        "This run is in a lake, which has its record alone. Its checkpoints, and searches of them, "
        "are in its folder: none is started or shown here. On a machine that sees the folder:"
    )
    st.code("sdc-bisect run FOLDER\nsdc-guard dashboard FOLDER", language="shell")
    onward("bisect")
    when_saved(queries.checkpoints(reader))


def when_saved(kept: list[Checkpoint]) -> None:
    """The checkpoints as they were judged when they were saved, with what was proven since."""
    if kept:
        st.subheader("Checkpoints", anchor=False)
        shown = kept[: -MAX_ROWS - 1 : -1]  # the newest first
        st.table(
            {
                "step": [f"{x.step:,}" for x in shown],
                "status": [status_text(x) for x in shown],
                "reason": [plain(x.reason) or "–" for x in shown],
            },
            hide_index=True,
        )


def others(reader: TraceReader, names: list[str]) -> None:
    """The newest sessions, each with a link."""
    if len(names) < 2:
        return
    st.subheader("Sessions of this run", anchor=False)
    attempts = len(reader.run_file.attempts)
    found = [searches.search_of(reader.run, name, attempts) for name in names[:_SESSIONS]]
    run = quote(str(st.query_params.get("run", "")))
    st.table(
        {
            "session": [f"[{x.told.name}](bisect?run={run}&session={x.told.name})" for x in found],
            "command": [plain(x.command) for x in found],
            "state": [f"{SYMBOLS[x.standing]} {x.standing}" for x in found],
            "answer": [plain(x.told.sentence) or "–" for x in found],
        },
        hide_index=True,
    )
    if len(names) > len(found):
        st.caption(f"The newest {len(found)} of {count(len(names), 'session')}.")


def body() -> None:
    """All of the page that changes while a search runs."""
    with errors_told():
        searched(current_source())


def first_shown(reader: TraceReader) -> str | None:
    """The session to show at first, of a run that none works on: a proof outlives what follows."""
    results = sessions.session_results(reader.run, len(reader.run_file.attempts))
    proving = proof.newest_proof(results, None)
    return searches.newest_answered(reader.run) if proving is None else proving.session


def searched(source: Source) -> None:
    if is_lake(str(source.location)):
        in_a_lake(source.reader())
        return
    reader = source.reader()
    names = searches.names(source.run)
    running = searches.newest_running(source.run)
    buttons, choice, one, all_of_them = (st.container() for _ in range(4))
    with buttons:
        starting.panel(source.run, reader.run_file.resume, running)
    if (mine := starting.followed(source.run, running)) is not None:
        st.query_params["session"] = mine
    with choice:
        name = chosen(names, running or first_shown(reader))
    with one:
        if name is None:
            unsearched(reader)
        else:
            session(reader, name)
    with all_of_them:
        others(reader, names)
    busy = running is not None or starting.is_starting(source.run)
    if busy != st.session_state.get("search runs"):  # another pace from now on
        st.session_state["search runs"] = busy
        st.rerun()


def show() -> None:
    source = current_source()
    busy = starting.is_starting(source.run) or searches.newest_running(source.run) is not None
    st.session_state["search runs"] = busy
    is_live = busy or st.session_state.get("live", True)
    pace = (_FOLLOWED if busy else _LOOKED) if is_live else None
    st.fragment(run_every=pace)(body)()


show()
