"""The commands on archives behind URLs: what works, and the one line of what does not."""

from __future__ import annotations

import errno
import socket
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import damaged_archives as made
import pytest
from in_process import bisect
from s3_server import Bucket, forget, s3_server

from forensics import locations
from forensics.checkpoint import Checkpoint
from forensics.index import index
from forensics.locations import location
from forensics.oracles.integrity import IntegrityOracle
from forensics.oracles.judgement import Judgement
from forensics.remote import store
from forensics.remote.blocks import Blocks
from forensics.remote.path import RemotePath
from forensics.scanning import scanned
from sdc_guard.errors import ArchiveUnreachable

SECRET = "secret-of-the-test"


@pytest.fixture(scope="module")
def bucket() -> Iterator[Bucket]:
    with s3_server() as running:
        yield running


@pytest.fixture(scope="module")
def url(bucket: Bucket, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Five checkpoints of which that of step 300 has a flipped bit."""
    folder = tmp_path_factory.mktemp("archive")
    made.bad_crc(folder)
    return bucket.put(folder, "archive")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of state; nothing of the user's own is touched."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path / "copies"))
    (tmp_path / "copies").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path / "state" / "sdc-guard" / "bisect"


def test_run_proves_what_is_damaged(url: str, state: Path) -> None:
    found = bisect("run", url, "--json").json
    assert (found["last_clean"], found["first_corrupt"], found["proven"]) == (200, 300, True)
    assert "no session is open" in bisect("status", url).err  # it is over with its answer
    assert [one.name.startswith("s3-bucket-archive-") for one in state.iterdir()] == [True]


def test_a_command_is_given_a_copy_for_its_time(url: str, state: Path, tmp_path: Path) -> None:
    check = (
        "import os, sys; file, step = sys.argv[1], int(sys.argv[2]); "
        "assert os.path.basename(file) == f'step-{step}.pt'; "
        "assert os.path.getsize(file) > 16384 and not file.startswith('s3'); "
        "print(file); sys.exit(step >= 400)"
    )
    done = bisect("run", url, "--json", "--", sys.executable, "-c", check, "{ckpt}", "{step}")
    assert (done.json["last_clean"], done.json["first_corrupt"]) == (300, 400)
    assert list((tmp_path / "copies").iterdir()) == []
    assert all(one.name.startswith("s3-bucket-archive-") for one in state.iterdir())


def test_a_command_is_given_the_url_where_that_is_asked_for(url: str, tmp_path: Path) -> None:
    check = "import sys; sys.exit(0 if sys.argv[1].startswith('s3://bucket/archive/step-') else 3)"
    place = tmp_path / "session"
    done = bisect(
        "run", url, "--pass-urls", "--session", place, "--", sys.executable, "-c", check, "{ckpt}"
    )
    assert done.code == 0, done.err
    assert (place / "0001" / "journal.jsonl").is_file()


def test_no_copy_where_there_is_no_room(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    done = bisect("run", url, "--", "true", "{ckpt}")
    assert done.code == 2
    assert "no room for a copy of" in done.err.splitlines()[-1]


def test_a_session_is_kept_in_the_users_state(url: str, state: Path) -> None:
    assert "step 500" in bisect("start", url).out
    assert bisect("bad", url, 500).code == 0
    assert bisect("good", url, 100).code == 0
    (folder,) = state.iterdir()
    assert bisect("status", url, "--json").json["next"]["path"] == f"{url}/step-300.pt"
    told = bisect("log", url).out
    assert url in told
    done = bisect("run", url, "--oracle", "integrity", "--json")
    assert (done.json["last_clean"], done.json["first_corrupt"]) == (200, 300)
    assert bisect("reset", url).code == 0
    assert (folder / "0001" / "result.json").is_file()
    named = state / "named"
    assert bisect("start", url, "--session", named).code == 0
    assert bisect("bad", "--session", named, 500).code == 0  # the session says whose it is


def test_diff_and_doctor(url: str) -> None:
    assert bisect("diff", f"{url}/step-100.pt", f"{url}/step-100.pt").code == 0
    assert bisect("diff", f"{url}/step-100.pt", f"{url}/step-200.pt").code == 1
    assert "torch: 5, 5 readable\nfile system: s3 (a URL)" in bisect("doctor", url).out


REFUSED = (
    (("seal", "{url}"), "nothing is written behind a URL"),
    (("verify", "{url}", "--", "true", "{ckpt}"), "a run's trace is not read behind a URL"),
    (("report", "{url}"), "a report is not written of what is behind a URL"),
    (("run", "{url}", "--oracle", "trace"), "a run's trace is not read behind a URL"),
    (("index", "s3://nobody/x"), "no such folder: s3://nobody/x"),
    (("scan", "{url}/none"), "no such folder: s3://bucket/archive/none"),
    (("index", "s3://"), "the URL names nothing"),
    (("index", "nowhere://x/y"), "no file system is known by nowhere://"),
    (("index", "gs://x/y"), "gs:// needs a package that is not installed"),
    (("index", "simplecache::s3://bucket/x"), "a chain of file systems is not read"),
    (("index", f"s3://key:{SECRET}@nobody/x"), "no such folder: s3://nobody/x"),
    (("index", f"https://me:{SECRET}@host/x"), "https://host/x"),
)


@pytest.mark.parametrize(("arguments", "line"), REFUSED, ids=[row[1] for row in REFUSED])
def test_what_cannot_be_is_told_in_a_line(arguments: tuple[str, ...], line: str, url: str) -> None:
    if arguments[1].startswith("gs:") and find_spec("gcsfs") is not None:
        pytest.skip("because gs:// can be read where its package is installed")
    done = bisect(*(one.replace("{url}", url) for one in arguments))
    assert done.code == 2
    (said,) = done.err.splitlines()
    assert line in said
    assert SECRET not in done.out + done.err


def test_credentials_in_a_url_work_and_are_never_shown(url: str, state: Path) -> None:
    with_key = url.replace("s3://", f"s3://testing:{SECRET}@")
    for arguments in (("index", "--json"), ("scan",), ("doctor",), ("start",), ("status",)):
        done = bisect(arguments[0], with_key, *arguments[1:])
        assert SECRET not in done.out + done.err
        assert "Traceback" not in done.err
    for file in state.rglob("*"):
        assert SECRET not in str(file)
        assert not file.is_file() or SECRET not in file.read_text()


def test_without_the_package_the_extra_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(vars(import_module("fsspec.registry"))["_registry"], "s3", raising=False)
    done = bisect("index", url)
    assert done.code == 2
    assert "pip install sdc-guard-torch[remote]" in done.err
    assert bisect("index", Path(__file__).parent.as_uri()).code == 5  # no checkpoint there


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    folder = tmp_path / "a b"
    folder.mkdir()
    made.pt(folder, (1, 2))
    assert location(folder.as_uri()) == folder
    assert bisect("index", folder.as_uri()).out == bisect("index", folder).out


def test_a_wrong_key(url: str, bucket: Bucket) -> None:
    def count_of_free_actions(count: bytes) -> None:
        headers = {"Content-Type": "text/plain"}
        address = f"{bucket.address}/moto-api/reset-auth"
        asked = urllib.request.Request(address, count, headers, method="POST")
        urllib.request.urlopen(asked).close()

    count_of_free_actions(b"0")
    try:
        done = bisect("scan", url)
    finally:
        count_of_free_actions(b"inf")
    assert done.code == 2
    assert done.err.startswith("sdc-bisect: permission denied, or a wrong key: s3://bucket/archive")


def test_nobody_at_the_address(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    _unreachable(url)


def test_nobody_answers(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    patience = {"connect_timeout": 0.3, "read_timeout": 0.3, "retries": {"max_attempts": 0}}
    monkeypatch.setattr(locations, "_PATIENCE", patience)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        monkeypatch.setenv("AWS_ENDPOINT_URL", address)
        _unreachable(url)


def _unreachable(url: str) -> None:
    forget()
    done = bisect("index", url)
    forget()
    assert done.code == 5
    (said,) = done.err.splitlines()
    assert said.startswith("sdc-bisect: the store cannot be reached (")
    assert "then run it again" in said


def test_a_store_that_stops_answering_is_no_damage(url: str) -> None:
    found = index(location(url))
    path = found[0].path
    assert isinstance(path, RemotePath)

    def cut(*_: object, **__: object) -> bytes:
        raise ConnectionResetError("gone")

    path.store.fs.cat_file = cut
    path.store._blocks = Blocks()  # nothing is kept of before
    try:
        with pytest.raises(ArchiveUnreachable, match="the store cannot be reached"):
            scanned(found)
    finally:
        del path.store.fs.cat_file


def test_a_store_that_is_busy_is_asked_again_and_is_no_damage(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "_PAUSES", (0.0, 0.0))
    found = index(location(url))
    path = found[0].path
    assert isinstance(path, RemotePath)
    real, asked = path.store.fs.cat_file, 0

    def busy(until: int) -> None:
        def answer(*places: object, **more: object) -> bytes:
            nonlocal asked
            asked += 1
            if asked <= until:
                raise OSError(errno.EBUSY, "Please reduce your request rate.")  # SlowDown, a 503
            content: bytes = real(*places, **more)
            return content

        path.store.fs.cat_file = answer
        path.store._blocks = Blocks()

    try:
        busy(until=2)
        assert [one.checkpoint.step for one in scanned(found) if one.status == "corrupt"] == [300]
        asked = 0
        busy(until=1000)
        with pytest.raises(ArchiveUnreachable, match="EBUSY"):
            scanned(found)
        assert asked == 3
    finally:
        del path.store.fs.cat_file


def test_an_outage_while_it_is_judged_leaves_the_answer_to_the_next_run(
    url: str, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit 5, never a verdict; the same command then goes on in the same session."""
    judge, left = IntegrityOracle.judge, [0]

    def cut(self: IntegrityOracle, one: Checkpoint) -> Judgement:
        left[0] -= 1
        if left[0] >= 0:
            return judge(self, one)
        assert isinstance(one.path, RemotePath)
        one.path.store.down = ArchiveUnreachable("the store cannot be reached")
        return Judgement("untestable", "cannot be read")

    monkeypatch.setattr(IntegrityOracle, "judge", cut)
    for number in (0, 1, 2, 4):  # both ends first: whether there are checksums
        left[0] = number
        assert bisect("run", url).code == 5
    left[0] = 1000
    found = bisect("run", url, "--json").json
    assert (found["last_clean"], found["first_corrupt"], found["proven"]) == (200, 300, True)
    (sessions,) = state.iterdir()
    assert not (sessions / "0002").exists()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def test_a_folder_that_a_web_server_lists(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    made.bad_crc(archive)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(archive)))
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        local, remote = bisect("scan", archive), bisect("scan", address)
        assert bisect("index", f"{address}/none").code == 2
    finally:
        server.shutdown()
        server.server_close()
        serving.join()
    assert (remote.out, remote.code) == (local.out, 1)
    assert bisect("index", address).code == 5  # nobody is there any more
