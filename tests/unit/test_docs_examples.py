"""The runner of the documents' examples sees what is not as shown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from docs_examples import Example, Shell, console_examples, matches, run_examples

PAGE = """
Text, and $ not a command.

```
$ not in a console block
```

```console
$ one a \\
    b  # a remark
first
  second

$ two
$ echo $?
3
```

```console
$ three
```
"""


def test_commands_with_their_output_and_line() -> None:
    assert console_examples(PAGE) == [
        Example(9, "one a     b  # a remark", "first\n  second\n"),
        Example(14, "two", None),
        Example(15, "echo $?", "3"),
        Example(20, "three", None),
    ]


def test_a_block_that_begins_with_output_is_refused() -> None:
    with pytest.raises(ValueError, match="line 2: a console block begins with a command"):
        console_examples("```console\noutput\n$ command\n```\n")


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a b", "a   b\n", True),
        ("a b", "ab\n", False),
        ("a", "a\nb\n", False),
        ("a\nb", "a\n", False),
        ("step ... is corrupt", "step 12 is corrupt\n", True),
        ("step ... is corrupt", "step 12 is clean\n", False),
        ("...\nlast", "1\n2\nlast\n", True),
        ("...\nlast", "1\nlast\n2\n", False),
        ("first\n...", "first\n", True),
        ("a\n...\nb\n...\nc", "a\nx\nb\nb\nc\n", True),
        ("a\n...\nb\n...\nc", "a\nx\nc\nb\n", False),
        ("a...", "b\n", False),
        ("(1.5)", "(1x5)\n", False),
    ],
)
def test_an_output_is_as_shown_or_not(expected: str, printed: str, same: bool) -> None:
    assert matches(expected, printed) is same


def test_what_differs_is_told_with_line_and_both_texts(tmp_path: Path) -> None:
    ran: list[list[str]] = []

    def run(words: list[str]) -> tuple[int, str]:
        ran.append(words)
        return (3, "") if words == ["two"] else (0, "first\n")

    (wrong,) = run_examples(console_examples(PAGE), tmp_path, run)
    assert ran == [["one", "a", "b"], ["two"], ["three"]]
    assert wrong.startswith("line 9: $ one a")
    assert "shown:\nfirst\n  second" in wrong
    assert wrong.endswith("printed (exit code 0):\nfirst\n")


def test_another_exit_code_is_told(tmp_path: Path) -> None:
    (wrong,) = run_examples(
        console_examples("```console\n$ a\n$ echo $?\n1\n```"), tmp_path, lambda _: (2, "")
    )
    assert "printed (exit code 2):\n2" in wrong


def test_the_packages_commands_run_in_the_folder(tmp_path: Path) -> None:
    here = Path.cwd()
    page = (
        "```console\n$ mkdir -p a/b\n$ cd a\n$ sdc-bisect index b\n"
        "sdc-bisect: ... an empty folder: b (...\n$ echo $?\n5\n"
        "$ sdc-guard --version\n...version...\n```\n"
    )
    assert run_examples(console_examples(page), tmp_path, Shell()) == []
    assert Path.cwd() == here


def test_a_command_that_is_not_known_is_an_error_of_the_page(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="rm: not one of cat, cp, mkdir, sdc-bisect, sdc-guard"):
        run_examples([Example(1, "rm -r x", None)], tmp_path, Shell())
    shell = Shell({"rm": lambda *words: (0, " ".join(words))})
    assert run_examples([Example(1, "rm -r x", "-r x")], tmp_path, shell) == []


def test_a_page_without_examples_is_not_called_tested(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="no console block"):
        run_examples([], tmp_path, Shell())
