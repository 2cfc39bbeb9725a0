"""The wheel: exactly three top-level packages, and its commands work from another folder."""

from __future__ import annotations

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def test_top_level_names(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {
        "sdc_guard",
        "forensics",
        "app",
    }
    assert "sdc_guard/demo/tiny_gpt.py" in names
    assert {f"forensics/reporting/page.{kind}" for kind in ("html.jinja", "css")} <= set(names)


def test_the_distribution_is_not_named_like_somebody_elses(wheel: Path) -> None:
    assert wheel.name.split("-")[0] not in {"sdc_guard", "sdcguard"}


def test_installed_commands_run_from_another_folder(wheel: Path, tmp_path: Path) -> None:
    # the dependencies come from this environment; the three packages from the wheel alone
    environment = tmp_path / "fresh"
    venv.create(environment, with_pip=False)
    (site,) = environment.glob("lib/python*/site-packages")
    zipfile.ZipFile(wheel).extractall(site)
    here = Path(next(path for path in sys.path if path.endswith("site-packages")))
    (site / "dependencies.pth").write_text(str(here) + "\n", encoding="utf-8")
    python = environment / "bin" / "python"

    def call(*arguments: str) -> str:
        done = subprocess.run(
            [python, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        return done.stdout

    origin = call("-c", "import sdc_guard, forensics, app; print(sdc_guard.__file__)")
    assert origin.startswith(str(site))
    assert "verify" in call("-m", "forensics.cli", "--help")
    assert "demo" in call("-m", "sdc_guard.cli", "--help")
    script = call("-c", "from sdc_guard.demo.story import sample_script; print(sample_script())")
    assert Path(script.strip()) == site / "sdc_guard" / "demo" / "tiny_gpt.py"
