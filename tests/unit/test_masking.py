"""What of a URL is shown, and what is left of it for the store."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from forensics.cli import main
from forensics.locations import location
from forensics.remote.errors import translated
from forensics.remote.masking import masked
from sdc_guard.errors import UsageError

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("s3://bucket/x", "s3://bucket/x"),
        ("s3://KEY:hunter2@bucket/x", "s3://bucket/x"),
        ("s3://KEY:hunter2/abc@bucket/x", "s3://bucket/x"),
        ("s3://KEY:hun/ter2/a/b@bucket/x", "s3://bucket/x"),
        ("s3://KEY:hu@nter2@bucket/x", "s3://bucket/x"),
        ("s3://KEY:12/3@bucket/x", "s3://bucket/x"),
        ("s3://bucket/at@home/x", "s3://bucket/at@home/x"),
        ("s3://arn:aws:s3:eu-1:12:accesspoint/a/b@c", "s3://arn:aws:s3:eu-1:12:accesspoint/a/b@c"),
        ("http://host:8080/a@b/x", "http://host:8080/a@b/x"),
        ("http://[::1]:8080/a@b/x", "http://[::1]:8080/a@b/x"),
        ("https://hunter2@host/x", "https://host/x"),
        ("https://me:hunter2@host/x", "https://host/x"),
        ("https://me:hun/ter2@host/x", "https://host/x"),
        ("http://host/?token=hunter2", "http://host/"),
        ("http://host/a.pt?hunter2", "http://host/a.pt"),
        ("s3://bucket/x?X-Amz-Signature=hunter2&y=1", "s3://bucket/x"),
        ("memory://top/what?/x", "memory://top/what?/x"),
        ("abfs://container@account/x", "abfs://container@account/x"),
        ("sftp://me@host/x", "sftp://me@host/x"),
        ("simplecache::s3://K:hunter2@bucket/x", "simplecache::s3://bucket/x"),
        ("/local/a@b?c=d", "/local/a@b?c=d"),
    ],
)
def test_what_is_shown_of_a_url(text: str, shown: str) -> None:
    assert masked(text) == shown
    assert shown in str(translated(RuntimeError("x"), text))


@given(st.text("ab/+:%", max_size=6), st.text("ab/+:", max_size=6))
def test_no_part_of_a_secret_is_left(before: str, after: str) -> None:
    for protocol in ("s3", "https"):
        url = f"{protocol}://KEY:{before}{SECRET}{after}@bucket/folder?sig={SECRET}"
        assert masked(url) == f"{protocol}://bucket/folder"


@pytest.mark.parametrize(
    "url",
    ["s3://KEY:hunter2/abc@bucket/x", "https://hunter2@host/x", "https://k:hunter2/a@host/x"],
)
def test_a_url_that_cannot_be_cut_is_refused_without_its_secret(url: str) -> None:
    with pytest.raises(UsageError) as raised:
        location(url)
    assert SECRET not in str(raised.value)


class _Asking(SimpleHTTPRequestHandler):
    """Gives a file only to who asks with the token."""

    def do_GET(self) -> None:
        self._answer(super().do_GET)

    def do_HEAD(self) -> None:
        self._answer(super().do_HEAD)

    def _answer(self, give: object) -> None:
        if not self.path.endswith(f"?token={SECRET}"):
            self.send_error(403)
        elif callable(give):
            give()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Asking, directory=str(folder)))
    serving = Thread(target=server.serve_forever)
    serving.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


def test_a_query_goes_with_each_question_and_is_never_shown(tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason="because http:// is read by that package")
    torch.save({"w": torch.ones(3)}, tmp_path / "step-7.pt")
    with served(tmp_path) as address:
        for place in ("", "/step-7.pt"):
            for command in ("index", "scan", "doctor"):
                for more in ([], ["--json"]):
                    url = f"{address}{place}?token={SECRET}"
                    done = CliRunner().invoke(main, [command, url, *more])
                    assert (done.exit_code, SECRET in done.output) == (0, False), done.output
        refused = CliRunner().invoke(main, ["index", f"{address}?token=x{SECRET}"])
        assert (refused.exit_code, SECRET in refused.output) == (2, False)
