"""Starting the dashboard: uninstalled, without shadowing a package, without telemetry."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

from colour_contrast import contrast
from hand_made import corrupt_run

from app.palette import DARK, LIGHT

ROOT = Path(__file__).resolve().parents[2]
APP = ROOT / "app"

_RUN = """
import sys
from streamlit.testing.v1 import AppTest
entry, run, home = sys.argv[1:]
sys.argv = ["main.py", run]
page = AppTest.from_file(entry, default_timeout=60).run()
assert not page.exception, page.exception
assert "Corrupt" in page.error[0].value, page.error
for name in ("app", "forensics", "sdc_guard"):
    assert sys.modules[name].__file__.startswith(home), sys.modules[name].__file__
print("shown")
"""


def test_it_starts_where_the_packages_are_not_installed(tmp_path: Path) -> None:
    home = tmp_path / "checkout"
    for package in ("app", "forensics", "sdc_guard"):
        shutil.copytree(ROOT / package, home / package)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    run = corrupt_run(tmp_path / "run")
    done = subprocess.run(
        [sys.executable, "-c", _RUN, str(home / "app" / "main.py"), str(run), str(home)],
        capture_output=True,
        text=True,
        cwd=elsewhere,
        check=False,
        timeout=120,
    )
    assert done.stdout.strip().endswith("shown"), done.stderr[-2000:]


def test_no_file_beside_the_entry_script_shadows_a_module() -> None:
    # Streamlit puts the folder of the entry script first on the path
    names = {path.stem for path in APP.iterdir() if not path.name.startswith((".", "__"))}
    assert not names & {*sys.stdlib_module_names, *packages_distributions()} - {"app"}
    assert "pages" not in names


def test_telemetry_is_off_and_no_button_leads_to_a_web_site() -> None:
    config = tomllib.loads((APP / ".streamlit" / "config.toml").read_text())
    assert config["browser"]["gatherUsageStats"] is False
    assert config["client"]["toolbarMode"] == "minimal"
    assert config["client"]["showErrorLinks"] is False


def test_the_theme_has_the_palettes_colours_and_no_font_is_fetched() -> None:
    config = tomllib.loads((APP / ".streamlit" / "config.toml").read_text())
    theme = config["theme"]
    for kind, palette in (("light", LIGHT), ("dark", DARK)):
        colours = theme[kind]
        assert colours["linkColor"] == palette.line
        # it is text of what is chosen, on a tenth of itself, and white marks are seen on it
        primary, page = colours["primaryColor"], colours["backgroundColor"]
        assert primary in (palette.line, *palette.diverging)
        assert contrast(primary, "#ffffff") >= 3
        assert contrast(primary, over(page, primary, 0.1)) >= 4.5
        assert colours["textColor"] == colours["codeTextColor"] == palette.ink
        # captions, and the code among them
        assert contrast(over(page, palette.ink, 0.6), page) >= 4.5
        assert colours["borderColor"] == palette.rule
        assert {colours["backgroundColor"], colours["secondaryBackgroundColor"]} == {
            palette.page,
            palette.card,
        }
        assert colours["greenColor"] == palette.clean
        assert colours["orangeColor"] == colours["yellowColor"] == palette.suspect
        assert colours["redColor"] == palette.corrupt
        assert colours["violetColor"] == palette.chosen
        assert colours["grayColor"] == palette.untested
    fonts = [theme[name] for name in ("font", "headingFont", "codeFont")]
    assert not any(":" in font for font in fonts)  # a font's address would stand after one
    assert "fontFaces" not in theme


def over(page: str, colour: str, opacity: float) -> str:
    """A colour that lets the page through."""
    parts = [(int(colour[at : at + 2], 16), int(page[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(one * opacity + two * (1 - opacity)):02x}" for one, two in parts)


def test_no_button_is_filled_with_a_colour_that_white_text_is_not_read_on() -> None:
    sources = {path: path.read_text() for path in APP.rglob("*.py")}
    assert not [path for path, text in sources.items() if 'type="primary"' in text]


def test_it_listens_on_this_machine_unless_told_otherwise() -> None:
    server = tomllib.loads((APP / ".streamlit" / "config.toml").read_text())["server"]
    assert server["address"] == "127.0.0.1"
    assert server["fileWatcherType"] == "none"
    assert server["maxUploadSize"] == 1
    assert server["allowedHosts"] == ["localhost", "127.0.0.1", "::1"]
    assert not {"enableCORS", "enableXsrfProtection"} & set(server)  # on, as by default
