"""What now? Where to go on, what to discard and to test, and how sure that is."""

import functools

import streamlit as st

from app import answer_box, queries_act, reported
from app.advice import Advice, Context, advice, discard_text, go_back_of, hours_text
from app.navigation import onward
from app.source import Source, current_run, current_source
from app.wording import plain, utc_text
from forensics.reporting.answered import Answered
from forensics.reporting.facts import Headline
from sdc_guard.lake.location import is_lake, without_password
from sdc_guard.store.trace_reader import TraceReader

_LABELS = {"html": "One HTML page", "md": "Markdown", "json": "JSON"}
_AGAIN = 5.0  # seconds to the next look where an answer is shown that lags behind its run


@st.cache_resource(max_entries=8, show_spinner=False)
def kept_answer(place: str) -> reported.KeptAnswer:
    return reported.KeptAnswer(place)


def context_of(source: Source, reader: TraceReader, known: Answered) -> Context:
    """What the advice rests on besides the report's answer."""
    answer = known.headline
    back = go_back_of(answer, known.go_back)
    place = str(source.location)
    return Context(
        place=without_password(place) if is_lake(place) else place,
        last=known.last,
        lost_seconds=None if back.step is None else queries_act.seconds_after(reader, back.step),
        world_size=reader.run_file.world_size,
        audited=queries_act.audited(reader),
        resumable=bool(reader.run_file.resume),
        is_lake=is_lake(place),
    )


def steps(answer: Headline, found: Advice) -> None:
    """What to do, in its order; the numbers before the reasons."""
    resume = "–" if found.resume is None else f"step {found.resume:,}"
    discard, which = discard_text(found)
    hours = found.lost_hours
    answer_box.figures(
        {
            "Go on from" if found.needed else "Restore from": (resume, ""),
            discard: (which, ""),
            "Time lost": ("–" if hours is None else hours_text(hours), ""),
        }
    )
    lines = {}
    if found.path is not None:
        lines["Checkpoint"] = f"{found.path}. {found.why}"
    else:
        lines["Checkpoint"] = found.why
    if answer.damaged_files:
        damaged = ", ".join(f"{step:,}" for step in answer.damaged_files[:20])
        lines["Do not use the files of steps"] = damaged
    name, why = found.quarantine.name, found.quarantine.why
    lines["Quarantine"] = f"nothing. {why}" if name is None else f"{name}: {why}"
    if found.test_on is not None:
        lines["Test"] = f"the host {found.test_on}, where the step ran: sdc-guard selftest"
    if found.ran_on is not None:
        lines["It ran on"] = found.ran_on
    for what, text in lines.items():
        st.markdown(f"**{plain(what)}:** {plain(text)}")


def commands(found: Advice) -> None:
    if not found.commands:
        return
    st.subheader("Commands", anchor=False)
    for command, why in found.commands:
        st.caption(plain(why.rstrip(".")))
        st.code(command, language=None, wrap_lines=True)  # colours of words are hardly read


def grounds(found: Advice) -> None:
    """What it rests on, what would disprove it, and what is open."""
    st.subheader("How sure is that?", anchor=False)
    st.write(plain(found.confidence))
    parts = [
        ("It rests on", found.evidence),
        ("What would disprove it", found.disproof),
        ("Open questions", found.questions),
    ]
    shown = [(title, texts) for title, texts in parts if texts]
    if not shown:
        return
    for place, (title, texts) in zip(st.columns(len(shown)), shown, strict=True):
        place.markdown(f"**{title}**\n\n" + "\n".join(f"- {plain(text)}" for text in texts))


def downloads(source: Source) -> None:
    """The report's files; each is made when it is asked for."""
    st.subheader("Report", anchor=False)
    st.caption("What was recorded, searched and found, as `sdc-bisect report` writes it.")
    with st.container(horizontal=True):
        for form, (name, media) in reported.FILES.items():
            st.download_button(
                _LABELS[form],
                data=functools.partial(reported.report_file, str(source.location), form),
                file_name=f"{current_run().name}-{name}",
                mime=media,
                key=f"download {form}",
                icon=":material/download:",
                on_click="ignore",
            )


def look_again() -> None:
    """Show the newest answer, by now that it may be made anew."""
    if st.session_state.pop("answer lags", False):
        return  # the run of the page itself: nothing has passed yet
    st.rerun()


def show() -> None:
    source = current_source()
    version = source.version()
    kept = kept_answer(str(source.location))
    with st.spinner("Reading the run …", show_time=False):
        reader = source.reader()
        dated = kept.of(version, reader)
        known = dated.answer
        found = advice(known.headline, known.go_back, context_of(source, reader, known))
    answer_box.box(known.headline.state, known.headline.sentence)
    steps(known.headline, found)
    onward("act", known.headline.first_corrupt)
    commands(found)
    grounds(found)
    downloads(source)
    unread = "Damage to the rows of layers and digests is told by the report, which reads them all."
    st.caption(plain(f"As of {utc_text(dated.made)}. {unread}"))
    if kept.lags(version):
        st.session_state["answer lags"] = True
        st.fragment(run_every=_AGAIN)(look_again)()


show()
