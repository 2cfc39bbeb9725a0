"""What a detector reports."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["suspect", "proven"]


@dataclass(frozen=True)
class Alert:
    """One detector's finding.

    Attributes:
        step: the optimizer step at which it was seen.
        detector: name of the detector.
        layer: number of the layer, or None for what concerns the whole step.
        layer_name: its name, "" without a layer.
        score: what was measured, in the detector's own unit.
        threshold: what it was compared with; the alert is raised when the score exceeds it.
        severity: "proven" for an exact comparison, "suspect" for a statistic.
        detail: what else is known; JSON values only.
    """

    step: int
    detector: str
    layer: int | None
    layer_name: str
    score: float
    threshold: float
    severity: Severity
    detail: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        where = f" in {self.layer_name}" if self.layer_name else ""
        text = self.detail.get("text", "")
        return f"step {self.step}: {self.detector}{where}" + (f": {text}" if text else "")

    def detail_json(self) -> str:
        """`detail` as it is stored."""
        return json.dumps(self.detail, sort_keys=True)
