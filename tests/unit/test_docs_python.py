"""The Python in a document compiles, and what it imports and calls is there."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from documents import DOCUMENTS, blocks, shown

from sdc_guard import Guard, Injector, RunReader, load_checkpoint

OURS = ("sdc_guard", "forensics", "app")
# names that the documents use for one thing, also where a block before has made it
KNOWN: dict[str, Any] = {"Guard": Guard, "RunReader": RunReader, "load_checkpoint": load_checkpoint}
OBJECTS = {"guard": Guard, "injector": Injector, "reader": RunReader}


def parts(path: Path) -> list[tuple[int, ast.Module]]:
    return [
        (block.line, ast.parse(block.text, f"{shown(path)}, block of line {block.line}"))
        for block in blocks(path)
        if block.language == "python"
    ]


# its examples train: tests/integration runs each, and needs the libraries that take seconds to load
RUN_ELSEWHERE = {"docs/integrations.md"}
WITH_PYTHON = [
    path
    for path in DOCUMENTS
    if shown(path) not in RUN_ELSEWHERE and any(b.language == "python" for b in blocks(path))
]


def missing(tree: ast.Module) -> Iterator[str]:
    """What is imported and is not there; of other packages, whether they are."""
    for node in ast.walk(tree):
        names = [alias.name for alias in getattr(node, "names", ()) if isinstance(alias, ast.alias)]
        if isinstance(node, ast.Import):
            yield from (name for name in names if not importlib.util.find_spec(name))
        elif isinstance(node, ast.ImportFrom):
            of = str(node.module)
            if of.partition(".")[0] not in OURS:
                if not importlib.util.find_spec(of):
                    yield of
                continue
            module = importlib.import_module(of)
            yield from (
                f"{of}.{name}"
                for name in names
                if not hasattr(module, name) and not importlib.util.find_spec(f"{of}.{name}")
            )


def imported(tree: ast.Module) -> dict[str, Any]:
    """The names of this package that a block imports, to what they are."""
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] in OURS:
            module = importlib.import_module(str(node.module))
            found |= {a.asname or a.name: getattr(module, a.name, None) for a in node.names}
    return found


def misfits(tree: ast.Module, known: dict[str, Any]) -> Iterator[str]:
    """The calls of known things with arguments that they do not take."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called: Any = None
        arguments = [object() for _ in node.args]
        if isinstance(node.func, ast.Name):
            called = known.get(node.func.id)
        elif isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            owner = OBJECTS.get(node.func.value.id)
            if owner is not None:
                called = getattr(owner, node.func.attr, None)
                arguments = [object(), *arguments]  # self
                if called is None:
                    yield f"{ast.unparse(node.func)}: not there"
        given = {word.arg: object() for word in node.keywords if word.arg}
        if callable(called):
            try:
                inspect.signature(called).bind(*arguments, **given)
            except TypeError as error:
                yield f"{ast.unparse(node)}: {error}"


@pytest.mark.parametrize("path", WITH_PYTHON, ids=shown)
def test_it_compiles_and_its_names_and_arguments_exist(path: Path) -> None:
    known, wrong = dict(KNOWN), []
    for line, tree in parts(path):
        known |= imported(tree)
        wrong += [f"line {line}: {told}" for told in (*missing(tree), *misfits(tree, known))]
    assert not wrong


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("from sdc_guard import Gard", ["sdc_guard.Gard"]),
        ("import no_such_package", ["no_such_package"]),
        ("Guard(model, optimizer, run='x', audti=1)", ["Guard("]),
        ("guard.chekpoint({}, 1)", ["guard.chekpoint"]),
        ("guard.seal()", ["guard.seal()"]),
        ("guard.observe(loss, batch)", []),
        ("from sdc_guard.store import queries", []),
    ],
)
def test_what_is_not_there_is_seen(text: str, told: list[str]) -> None:
    tree = ast.parse(text)
    found = [*missing(tree), *misfits(tree, KNOWN)]
    assert len(found) == len(told)
    assert all(line.startswith(begin) for line, begin in zip(found, told, strict=True))
