"""A page of the dashboard, opened in this process."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

MAIN = Path(__file__).resolve().parents[2] / "app" / "main.py"


def page_of(
    monkeypatch: pytest.MonkeyPatch, page: str, run: Path | str, /, **query: str
) -> AppTest:
    """The page after it has rendered."""
    monkeypatch.setattr(sys, "argv", ["main.py", str(run)])
    app = AppTest.from_file(str(MAIN), default_timeout=60)
    app.switch_page(f"views/{page}.py")
    for name, value in query.items():
        app.query_params[name] = value
    return app.run()


def said(app: AppTest) -> str:
    """All text on the page; the backslashes that keep Markdown from reading it are taken out."""
    assert not app.exception, app.exception
    blocks = [*app.error, *app.warning, *app.success, *app.info, *app.caption, *app.subheader]
    parts = [str(element.value) for element in (*blocks, *app.markdown, *app.metric, *app.code)]
    parts += [table.value.to_string(max_colwidth=None) for table in (*app.table, *app.dataframe)]
    return "\n".join(parts).replace("\\", "")
