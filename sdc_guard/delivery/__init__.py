"""Telling others: alerts by HTTP and logging, metrics for Prometheus.

The names below are loaded when first used; each library behind them is optional.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .fan_out import every, logging_alerts
    from .metrics import GuardMetrics, serve_metrics
    from .webhook import Webhook

__all__ = ["GuardMetrics", "Webhook", "every", "logging_alerts", "serve_metrics"]

_HOME = {
    "GuardMetrics": ".metrics",
    "Webhook": ".webhook",
    "every": ".fan_out",
    "logging_alerts": ".fan_out",
    "serve_metrics": ".metrics",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOME[name], __name__), name)
