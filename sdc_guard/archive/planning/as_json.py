"""A plan as an object for programs."""

from __future__ import annotations

from typing import Any

from .plan import Plan


def as_object(plan: Plan) -> dict[str, Any]:
    """The plan in JSON output: seconds, bytes, dollars, shares of 1."""
    interval, failures, keeping, cache = plan.interval, plan.failures, plan.keeping, plan.cache
    return {
        "inputs": plan.inputs.as_object(),
        "checkpoint": {
            "bytes": plan.inputs["size"],
            "write_seconds": plan.writing,
            "load_seconds": failures.load,
            "dollars_per_month": plan.dollars_each,
        },
        "interval": {
            "seconds": interval.period,
            "work_seconds": interval.work,
            "stall_seconds": interval.stall,
            "steps": plan.interval_steps,
            "optimum_seconds": interval.best_period,
            "limited_by_write": interval.limited,
            "write_bytes_per_second_for_optimum": plan.inputs["size"] / interval.best_period,
        },
        "failure": {
            "system_mtbf_seconds": failures.mtbf,
            "detect_seconds": failures.detect,
            "restart_seconds": failures.restart,
            "load_seconds": failures.load,
            "until_running_seconds": failures.until_running,
            "replay_seconds": failures.replay,
            "total_seconds": failures.total,
            "useful_share": failures.useful,
            "stalled_share": failures.stalled,
        },
        "corruption": {
            "latency_seconds": plan.inputs.latency.mean,
            "excess_seconds": keeping.excess,
            "total_seconds": plan.rollback,
            "uncovered_share": keeping.uncovered,
        },
        "keep": {
            "best_count": keeping.best,
            "possible_count": keeping.possible,
            "count": keeping.count,
            "ages_seconds": keeping.ages.tolist(),
            "least_excess_seconds": keeping.least_excess,
        },
        "cache": None if cache is None else {
            "load_seconds": cache.load,
            "saved_seconds_per_failure": cache.saved,
            "saved_dollars_per_month": cache.dollars,
            "checkpoints": cache.fits,
        },
        "dollars_per_month": {
            "storage": plan.costs.storage,
            "stalls": plan.costs.stalls,
            "failures": plan.costs.failures,
            "corruption": plan.costs.corruption,
            "total": plan.costs.total,
        },
        "notes": list(plan.notes),
    }  # fmt: skip
