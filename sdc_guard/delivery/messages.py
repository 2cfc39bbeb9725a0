"""What a message says: pure functions from gathered alerts to the body of a post."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from ..detect.alert import Alert
from ..plain_json import plain
from .gathered import Gathered

Style = Literal["slack", "json"]
LINE = 300  # characters of an alert's text in a message; Slack cuts whole messages at 40,000


@dataclass(frozen=True)
class Sender:
    """Who sends.

    Attributes:
        run: what the user calls the run; may be empty.
        host: name of the machine.
        rank: of this process, as text; empty for a process alone.
    """

    run: str
    host: str
    rank: str

    def __str__(self) -> str:
        rank = f", rank {self.rank}" if self.rank else ""
        return f"{self.run} ({self.host}{rank})" if self.run else f"{self.host}{rank}"


def headline(gathered: Gathered) -> str:
    """`3 alerts, 1 proven, at steps 10 to 12: 2 carried, 1 nonfinite`."""
    noun = "alert" if gathered.count == 1 else "alerts"
    text = f"{gathered.count:,} {noun}"
    if gathered.proven:
        text += f", {gathered.proven:,} proven"
    if gathered.last_step is not None:
        one = gathered.first_step == gathered.last_step
        text += f", at step {gathered.first_step}" if one else (
            f", at steps {gathered.first_step} to {gathered.last_step}"
        )  # fmt: skip
        counted = gathered.detectors.most_common()
        text += ": " + ", ".join(f"{count:,} {detector}" for detector, count in counted)
    if gathered.dropped:
        text += f"; {gathered.dropped:,} more were dropped"
    return text


def slack(gathered: Gathered, sender: Sender, message_id: str) -> bytes:
    """The body that Slack's incoming webhooks take; `message_id` is not shown."""
    lines = [f"*SDC Guard* {_escaped(str(sender))}: {_escaped(headline(gathered))}"]
    lines += [f"• {_escaped(_cut(str(alert)))}" for alert in gathered.first]
    if gathered.count > len(gathered.first):
        lines.append(f"… and {gathered.count - len(gathered.first):,} more")
    return json.dumps({"text": "\n".join(lines)}).encode()


def as_json(gathered: Gathered, sender: Sender, message_id: str) -> bytes:
    """One JSON object, `message_id` the same in every try to post it."""
    content = {
        "schema": {"name": "sdc-guard.alerts", "version": 1},
        "id": message_id,
        "run": sender.run,
        "host": sender.host,
        "rank": int(sender.rank) if sender.rank.isdecimal() else None,
        "text": headline(gathered),
        "count": gathered.count,
        "proven": gathered.proven,
        "first_step": gathered.first_step,
        "last_step": gathered.last_step,
        "detectors": dict(gathered.detectors),
        "dropped": gathered.dropped,
        "alerts": [alert_object(alert) for alert in gathered.first],
    }
    return json.dumps(content, allow_nan=False).encode()


def alert_object(alert: Alert) -> dict[str, Any]:
    """An alert as a JSON object."""
    return {
        "step": alert.step,
        "detector": alert.detector,
        "layer": alert.layer_name or None,
        "score": plain(alert.score),
        "threshold": plain(alert.threshold),
        "severity": alert.severity,
        "text": _cut(str(alert)),
        "detail": plain(alert.detail),
    }


BODIES: Final[Mapping[Style, Callable[[Gathered, Sender, str], bytes]]] = {
    "slack": slack,
    "json": as_json,
}


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LINE else line[: LINE - 1] + "…"


def _escaped(text: str) -> str:
    # Slack's three letters; a layer's name must not become a link or a mention
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
