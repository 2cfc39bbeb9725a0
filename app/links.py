"""Links between pages that keep what the reader looks at."""

from __future__ import annotations

from typing import Final

import streamlit as st
from streamlit.errors import StreamlitAPIException

_KEPT: Final = ("run", "incident", "step", "layer", "rank", "attempt")
_ICONS: Final = {
    "timeline": ":material/timeline:",
    "locate": ":material/my_location:",
    "bisect": ":material/account_tree:",
    "act": ":material/healing:",
}


def link(name: str, label: str, **changes: str | int | None) -> None:
    """A link to a page with the address's query, these values changed; nothing without the page."""
    query = {key: st.query_params[key] for key in _KEPT if st.query_params.get(key)}
    query |= {key: str(value) for key, value in changes.items() if value is not None}
    try:
        st.page_link(
            f"views/{name}.py", label=label, icon=_ICONS.get(name), query_params=query or None
        )
    except StreamlitAPIException:  # because this installation may lack the page
        return
