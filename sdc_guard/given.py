"""All that a Guard is given, looked at before anything is made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .errors import UsageError
from .options import (
    Keep,
    check,
    check_archive,
    check_cadences,
    check_functions,
    check_keep,
    check_paths,
    check_sensor,
    check_switches,
)


def check_given(
    *,
    run: str | Path,
    shadow: Any,
    shadow_every: int,
    first_step: int,
    policy: str,
    on_alert: Any,
    digest_budget: float | None,
    invariants_every: int | None,
    overlap_digests: bool,
    digest_buffers: bool,
    digest_gradients: bool,
    replicas_every: int | None,
    peers_every: int | None,
    verify_archive: int | None,
    audit: Any,
    audit_rate: float,
    ledger: str | Path | None,
    probe_every: int | None,
    sensor: str,
    false_incidents: float | None,
    keep: Keep,
    archive_format: str,
) -> None:
    """Refuse what cannot be meant; see `Guard` for each.

    Raises:
        UsageError: one of them cannot be meant.
    """
    check(policy, first_step, digest_budget, audit_rate)
    check_cadences(
        shadow_every=shadow_every,
        invariants_every=invariants_every,
        replicas_every=replicas_every,
        peers_every=peers_every,
        probe_every=probe_every,
        verify_archive=verify_archive,
    )
    if verify_archive is not None and shadow is None:
        raise UsageError("verify_archive needs shadow", next_step="Guard(shadow=(batch, loss))")
    check_keep(keep)
    check_sensor(sensor, false_incidents)
    check_archive(archive_format)
    check_functions(shadow, on_alert=on_alert, audit=audit)
    check_paths(run=run, **({} if ledger is None else {"ledger": ledger}))
    check_switches(
        overlap_digests=overlap_digests,
        digest_buffers=digest_buffers,
        digest_gradients=digest_gradients,
    )
