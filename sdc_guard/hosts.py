"""Where the dashboard's server may listen, and where its token and its judge are kept."""

from __future__ import annotations

import ipaddress
from typing import Final

TOKEN_VARIABLE: Final = "SDC_GUARD_TOKEN"  # of the environment
JUDGE_VARIABLE: Final = "SDC_GUARD_JUDGE"  # likewise: a command that pages may search by


def is_loopback(host: str) -> bool:
    """Whether an address reaches this machine only: localhost, 127.0.0.0/8 or ::1."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Whether an address stands for all of this machine's: 0.0.0.0 or ::."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False
