"""Text of others, as names of files and tensors are, as a terminal or Markdown shows it."""

from __future__ import annotations


def shown(text: str) -> str:
    r"""The same text on one line, without what moves a cursor or no encoding knows.

    Told as its escape is what does not print: control characters (a line break as \n, ESC as
    \x1b), marks that turn the direction of writing, and halves of surrogate pairs, which the name
    of a file has whose bytes are no UTF-8. All else, letters of any alphabet included, stays.
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )
