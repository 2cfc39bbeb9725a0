"""Every link in a document leads somewhere: to a file of this repository, to a heading."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from documents import DOCUMENTS, ROOT, prose, shown

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)(?: \"[^\"]*\")?\)|(?:src|href)=\"([^\"]+)\"")


def anchors_of(path: Path) -> set[str]:
    """The names that a page's headings have on GitHub, which numbers those that come again."""
    found: dict[str, int] = {}
    names = set()
    for title in re.findall(r"^#{1,6} +(.*?) *#* *$", prose(path), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower()
        name = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        again = found[name] = found.get(name, -1) + 1
        names.add(f"{name}-{again}" if again else name)
    return names


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("# One, two: `three`\n", {"one-two-three"}),
        ("## A [link](x.md)\n## a link\n", {"a-link", "a-link-1"}),
        ("```\n# not one\n```\n", set()),
        ("## sdc-guard check-log\n### R&D  now\n", {"sdc-guard-check-log", "rd--now"}),
    ],
)
def test_the_names_of_headings_are_githubs(text: str, names: set[str], tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(text)
    assert anchors_of(tmp_path / "page.md") == names


@pytest.mark.parametrize("path", DOCUMENTS, ids=shown)
def test_every_link_leads_somewhere(path: Path) -> None:
    wrong = []
    for found in _LINK.finditer(prose(path)):
        target = found[1] or found[2]
        if re.match(r"https?://|mailto:", target):
            continue
        name, _, anchor = target.partition("#")
        there = path if not name else (path.parent / name).resolve()
        inside = there.is_relative_to(ROOT)
        if not inside or not there.exists() or (anchor and anchor not in anchors_of(there)):
            wrong.append(target)
    assert not wrong


def test_every_document_is_led_to_from_the_readme() -> None:
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        path = waiting.pop()
        if path in reached or path.suffix != ".md" or not path.exists():
            continue
        reached.add(path)
        waiting += [
            (path.parent / (found[1] or found[2]).partition("#")[0]).resolve()
            for found in _LINK.finditer(prose(path))
        ]
    assert {shown(path) for path in DOCUMENTS} - {shown(path) for path in reached} == set()
