"""Colours of all figures: Okabe and Ito's (2008), which people with colour-blindness tell apart.

Whoever draws gives each kind of thing a shape of its own beside its colour.
"""

from __future__ import annotations

from typing import Final

BLUE: Final = "#0072b2"
GREEN: Final = "#009e73"
ORANGE: Final = "#e69f00"
PURPLE: Final = "#cc79a7"
VERMILION: Final = "#d55e00"

INK: Final = "#1f2933"  # text
SOFT: Final = "#52606d"  # lesser text
RULE: Final = "#d9dee4"  # thin lines
