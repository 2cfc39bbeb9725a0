"""What the doctor says about packages, of distributions and folders made for it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path

from sdc_guard.doctor.clashes import NAMES, owners, resolved, shadows
from sdc_guard.doctor.extras import USES, requirements
from sdc_guard.doctor.finding import NOTE, OK, PROBLEM, WARNING, Finding

ROOT = Path(__file__).resolve().parents[2]


def installs(
    site: Path,
    name: str,
    version: str = "1.0",
    files: Iterable[str] = (),
    needs: Iterable[str] = (),
) -> None:
    """A distribution as pip leaves it: its files, METADATA and RECORD."""
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"]
    lines += [f"Requires-Dist: {need}\n" for need in needs]
    (info / "METADATA").write_text("".join(lines))
    for file in files:
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).touch()
    (info / "RECORD").write_text("".join(f"{file},sha256=x,0\n" for file in files))


def levels(found: Iterable[Finding]) -> list[str]:
    return [one.level for one in found]


OWN = [f"{name}/__init__.py" for name in NAMES]


def test_a_distribution_with_our_names_in_our_folder_is_a_problem(tmp_path: Path) -> None:
    installs(tmp_path, "sdc-guard-torch", files=OWN)
    installs(tmp_path, "applause", files=["applause/__init__.py", "forensics_tools/__init__.py"])
    path = [str(tmp_path)]
    assert levels(owners(path)) == [OK]
    installs(tmp_path, "Forensics", files=["forensics/__init__.py", "app.py"])
    (found,) = owners(path)
    assert found.level == PROBLEM
    assert "distribution forensics" in found.what
    assert "has app and forensics too" in found.what
    assert found.next_step.startswith("pip uninstall forensics,")


def test_a_distribution_elsewhere_is_a_warning_and_where_it_comes_first_a_problem(
    tmp_path: Path,
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    installs(ours, "sdc_guard.torch", files=OWN)
    installs(theirs, "forensics", files=["forensics/__init__.py"])
    assert levels(owners([str(ours), str(theirs)])) == [WARNING]
    assert levels(resolved(ours, [str(ours), str(theirs)])) == [OK, OK, OK]
    found = list(resolved(ours, [str(theirs), str(ours)]))
    assert levels(found) == [OK, PROBLEM, OK]
    assert str(theirs / "forensics") in found[1].what


def test_names_of_an_old_list_are_seen_and_broken_metadata_is_passed_over(tmp_path: Path) -> None:
    installs(tmp_path, "old")
    (tmp_path / "old-1.0.dist-info" / "top_level.txt").write_text("app\nother\n")
    (tmp_path / "~roken-1.0.dist-info").mkdir()
    (tmp_path / "bytes-1.0.dist-info").mkdir()
    (tmp_path / "bytes-1.0.dist-info" / "METADATA").write_bytes(b"\xff\xfe\x00")
    (found,) = owners([str(tmp_path)])
    assert (found.level, "has app too" in found.what) == (WARNING, True)


def test_installed_twice(tmp_path: Path) -> None:
    for site in ("one", "two"):
        installs(tmp_path / site, "sdc-guard-torch", files=OWN)
    first, last = owners([str(tmp_path / "one"), str(tmp_path / "two")])
    assert (first.level, last.level) == (WARNING, OK)
    assert first.what.startswith("there 2 times")


def test_a_package_that_cannot_be_imported(tmp_path: Path) -> None:
    installs(tmp_path, "sdc-guard-torch", files=OWN[:1])
    assert levels(resolved(tmp_path, [str(tmp_path)])) == [OK, PROBLEM, WARNING]


def test_a_local_folder_that_shadows(tmp_path: Path) -> None:
    (tmp_path / "app").mkdir()  # a namespace: ours goes before it
    (tmp_path / "sdc_guard.py").touch()
    (tmp_path / "forensics").mkdir()
    (tmp_path / "forensics" / "__init__.py").touch()
    found = list(shadows(tmp_path, ROOT))
    assert levels(found) == [WARNING, WARNING]
    assert str(tmp_path / "sdc_guard.py") in found[0].what
    assert str(tmp_path / "forensics" / "__init__.py") in found[1].what
    assert list(shadows(ROOT, ROOT)) == []  # a clone is no stranger to itself


def test_what_is_missing_and_of_another_version(tmp_path: Path) -> None:
    needs = [
        "torch>=2.6",
        "numpy<3,>=1.26",
        "winonly; sys_platform == 'win32'",
        "streamlit<2,>=1.67; extra == 'app'",
        "altair>=5.5; extra == 'app'",
        "urllib3>=2.2; extra == 'notify'",
        "ray>=2.40; extra == 'ray'",
        "ducklake; extra == 'lake'",
    ]
    installs(tmp_path, "sdc-guard-torch", needs=needs)
    path = [str(tmp_path)]
    installs(tmp_path, "torch", "2.7.0a0+git123")
    installs(tmp_path, "streamlit", "1.60.0")
    installs(tmp_path, "ray", "2.41.0")
    told = [one for one in requirements(path) if one.level != OK]
    found = {one.subject: one for one in told}
    # a build of torch of one's own is of its release
    assert [one.what for one in told if one.level == PROBLEM] == ["numpy is not installed"]
    assert found["packages"].level == PROBLEM
    assert found["extra lake"].next_step.startswith("in an environment of its own: pip install")
    assert found["extra app"].level == NOTE
    assert found["extra app"].what == "not installed (altair): sdc-guard dashboard"
    assert found["extra app"].next_step.startswith('pip install ".[app]"')
    assert found["extra notify"].level == NOTE
    assert "extra ray" not in found
    installs(tmp_path, "altair", "6.0")
    installs(tmp_path, "NumPy", "3.1.0")
    found = {one.subject: one for one in requirements(path) if one.level != OK}
    assert found["packages"].what == "numpy 3.1.0 is installed, <3,>=1.26 is needed"
    assert found["extra app"].level == WARNING
    assert found["extra app"].what.startswith("streamlit 1.60.0 is installed, <2,>=1.67 is needed")


def test_where_nothing_is_installed_that_is_told(tmp_path: Path) -> None:
    (found,) = requirements([str(tmp_path)])
    assert (found.level, found.subject) == (NOTE, "installation")


def test_each_extra_has_a_use() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(USES) == set(project["optional-dependencies"]) - {"dev"}
