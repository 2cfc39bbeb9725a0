"""The dashboard's colours, light and dark: Okabe and Ito's, which colour-blind people tell apart.

They are those of the report's page, but for a darker ink: Streamlit draws captions and the heads of
tables at 60 % of it, and these are to be read, too (WCAG 2, 4.5 to 1).
Whoever draws gives each state a shape beside its colour.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Palette:
    """Colours as CSS has them.

    Attributes:
        page, card, ink, soft, rule: background, raised background, text, lesser text, thin lines.
        line, second: of curves, the main one and another beside it.
        clean, suspect, corrupt, untested, event: of the states, for marks and areas.
        chosen: of what the reader selected.
        diverging: from the lowest to the highest value, the middle one being zero.
    """

    page: str
    card: str
    ink: str
    soft: str
    rule: str
    line: str
    second: str
    clean: str
    suspect: str
    corrupt: str
    untested: str
    event: str
    chosen: str
    diverging: tuple[str, ...]


LIGHT: Final = Palette(
    page="#f6f7f9",
    card="#ffffff",
    ink="#111a22",
    soft="#52606d",
    rule="#d9dee4",
    line="#0072b2",
    second="#cc79a7",
    clean="#009e73",
    suspect="#e69f00",
    corrupt="#d55e00",
    untested="#7b8794",
    event="#56b4e9",
    chosen="#7b3fe4",
    diverging=("#0b4f7d", "#5b9fcc", "#cfe1ee", "#f4f5f6", "#fbdcc2", "#ec8a3d", "#a43c00"),
)

DARK: Final = Palette(
    page="#11161b",
    card="#1a2128",
    ink="#e6eaee",
    soft="#a5b1bd",
    rule="#34404b",
    line="#56b4e9",
    second="#e0a0c4",
    clean="#2fbf95",
    suspect="#f0b23c",
    corrupt="#f08a4b",
    untested="#8a97a4",
    event="#7fc4ee",
    chosen="#b79bff",
    diverging=("#8ecbf2", "#4390c4", "#1f4560", "#20272e", "#5c3418", "#c8692a", "#ffb27d"),
)


def palette_of(kind: str | None) -> Palette:
    """The colours for a theme's kind, "light" or "dark", as Streamlit names it."""
    return DARK if kind == "dark" else LIGHT
