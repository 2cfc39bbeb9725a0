"""The wheel: exactly three top-level packages, and its commands work from another folder."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import venv
import zipfile
from collections.abc import Callable
from configparser import ConfigParser
from pathlib import Path

import pytest
from conftest import ROOT

Call = Callable[..., str]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def binaries(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The commands of an environment whose dependencies come from this one, and the three packages
    from the wheel alone."""
    environment = tmp_path_factory.mktemp("fresh")
    venv.create(environment, with_pip=False)
    (site,) = environment.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    here = Path(next(path for path in sys.path if path.endswith("site-packages")))
    (site / "dependencies.pth").write_text(str(here) + "\n", encoding="utf-8")
    points = ConfigParser()
    points.read(next(site.glob("*.dist-info/entry_points.txt")))
    for name, target in points["console_scripts"].items():
        module, _, function = target.partition(":")
        script = environment / "bin" / name  # as pip writes it
        script.write_text(
            f"#!{environment / 'bin' / 'python'}\nimport sys\nfrom {module} import {function}\n"
            f"sys.exit({function}())\n"
        )
        script.chmod(0o755)
    return environment / "bin"


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the commands are called from."""
    return tmp_path_factory.mktemp("elsewhere")


def plain() -> dict[str, str]:
    """This environment without what leads to the sources."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@pytest.fixture(scope="module")
def call(binaries: Path, elsewhere: Path) -> Call:
    """Call a command there; what it prints. Fails the test where its exit code is another."""

    def one(name: str, *arguments: object, code: int = 0) -> str:
        done = subprocess.run(
            [binaries / name, *map(str, arguments)],
            cwd=elsewhere, env=plain(), capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout

    return one


def test_top_level_names_and_the_data_of_the_packages(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "sdc_guard",
        "forensics",
        "app",
    }
    # what is no module and is tracked beside one
    tracked = {
        str(path.relative_to(ROOT))
        for package in ("sdc_guard", "forensics", "app")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = {name for name in names if ".dist-info/" not in name}
    assert packed == tracked | {"sdc_guard/demo/tiny_gpt.py"}
    assert {
        "forensics/reporting/page.html.jinja",
        "forensics/reporting/page.css",
        "app/icon.svg",
        "app/.streamlit/config.toml",
    } <= packed


def test_the_distribution_is_not_named_like_somebody_elses(wheel: Path) -> None:
    assert wheel.name.split("-")[0] not in {"sdc_guard", "sdcguard"}


def test_installed_commands_run_from_another_folder(call: Call, binaries: Path) -> None:
    assert "demo" in call("sdc-guard", "--help")
    assert "verify" in call("sdc-bisect", "--help")
    (site,) = binaries.parent.glob("lib/python*/site-packages")
    told = json.loads(call("sdc-guard", "doctor", "--json"))
    leads = {one["subject"]: one for one in told["findings"]}
    for name in ("sdc_guard", "forensics", "app"):
        assert leads[f"import {name}"]["what"] == str(site / name)
    assert not [one for one in told["findings"] if one["level"] == "problem"]


@pytest.mark.slow
def test_a_demo_that_is_installed(call: Call) -> None:
    # trains and searches with machine code that is compiled for this environment first
    assert "bit" in call("sdc-guard", "demo", "--run", "demo")
    assert json.loads(call("sdc-bisect", "run", "demo", "--json", code=1))["first_corrupt"]


# where the demo's script is, and some commands of sdc-bisect: torch is imported once for them
_COMMANDS = """
import json, sys
from forensics.cli import main
from sdc_guard.demo.story import sample_script
print(sample_script(), flush=True)
for words in json.loads(sys.argv[1]):
    try:
        main(words)
    except SystemExit as end:
        assert not end.code, words
"""


def test_a_run_is_searched_reported_and_shown(
    call: Call, binaries: Path, elsewhere: Path, clean_run: Path
) -> None:
    commands = [["scan", str(clean_run), "--json"], ["report", str(clean_run), "-o", "report.html"]]
    script, _, printed = call("python", "-c", _COMMANDS, json.dumps(commands)).partition("\n")
    scanned, _ = json.JSONDecoder().raw_decode(printed)
    (site,) = binaries.parent.glob("lib/python*/site-packages")
    assert Path(script) == site / "sdc_guard" / "demo" / "tiny_gpt.py"
    assert {one["status"] for one in scanned["checkpoints"]} == {"clean"}
    assert "<style>" in (elsewhere / "report.html").read_text()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [binaries / "sdc-guard", "dashboard", clean_run, "--port", str(port)]
    with (elsewhere / "log").open("w") as log:
        server = subprocess.Popen(command, cwd=elsewhere, env=plain(), stdout=log, stderr=log)
    try:
        assert _answer(server, f"http://127.0.0.1:{port}/_stcore/health") == "ok"
        assert "<html" in _answer(server, f"http://127.0.0.1:{port}/")
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(60)


def _answer(server: subprocess.Popen[bytes], address: str) -> str:
    """What a server answers, that may still be starting."""
    until = time.monotonic() + 120
    while True:
        try:
            with urllib.request.urlopen(address, timeout=30) as page:
                return str(page.read().decode())
        except OSError:
            assert server.poll() is None, "the server has ended"
            assert time.monotonic() < until, "no answer"
            time.sleep(0.1)
