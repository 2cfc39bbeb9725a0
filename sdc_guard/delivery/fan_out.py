"""Several takers of one alert."""

from __future__ import annotations

import logging
from collections.abc import Callable

from ..detect.alert import Alert
from .messages import alert_object

Taker = Callable[[Alert], object]


def every(*takers: Taker) -> Callable[[Alert], None]:
    """One callable for `Guard(on_alert=...)` that hands each alert to all of `takers`.

    They are called in their order, in the training thread. An error in one does not keep the
    alert from the others; it is raised afterwards, so that the guard counts it in `guard.health`
    and tells it once. The training goes on.
    """

    def hand_on(alert: Alert) -> None:
        errors = []
        for taker in takers:
            try:
                taker(alert)
            except Exception as error:  # noqa: BLE001 - because the others must not suffer from it
                errors.append(error)
        if len(errors) > 1:
            raise ExceptionGroup("several takers of an alert failed", errors)
        if errors:
            raise errors[0]

    return hand_on


def logging_alerts(logger: logging.Logger, level: int = logging.WARNING) -> Callable[[Alert], None]:
    """A callable that logs each alert to `logger`.

    The record's attribute `alert` is the alert as a JSON object, for handlers that keep fields.
    The policies "warn" and "skip" log to the logger "sdc_guard" by themselves; with this one use
    the policy "record".
    """

    def log(alert: Alert) -> None:
        logger.log(level, "SDC Guard: %s", alert, extra={"alert": alert_object(alert)})

    return log
