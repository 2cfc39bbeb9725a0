"""Starts Streamlit as `sdc-guard dashboard` does: `serve.py run app/main.py OPTIONS -- RUN…`."""

from streamlit import net_util
from streamlit.web import cli


def _nowhere() -> None:
    """In place of a look-up of this machine's public address, which asks a web site for it."""


if __name__ == "__main__":
    net_util.get_external_ip = _nowhere
    cli.main()
