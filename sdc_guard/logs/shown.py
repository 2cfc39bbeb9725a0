"""Names and cells of somebody's file, as they are shown on a terminal."""

from __future__ import annotations


def shown(text: str) -> str:
    """The same text without what moves a cursor or no encoding knows: told as its escape."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode()
        for letter in text
    )
