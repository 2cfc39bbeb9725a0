"""What a campaign's file says in short: per model, site and mix, which faults what has found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

Ask = Callable[[str], list[Any]]

# sites whose every fault has to be found: state between two steps, and the bytes of a checkpoint
CERTAIN: Final = ("weight", "exp_avg", "exp_avg_sq", "step", "buffer", "file")

# Scored are faults that changed bits and, by that, what came after. An alert counts from the step
# of the fault on; "proven" and "suspect" are the guard's severities. Manifest, and replay: see the
# table "trials".
_CELLS: Final = """
    WITH said AS (
        SELECT trial,
            bool_or(severity <> 'proven') AS sensor,
            bool_or(severity = 'proven' AND detector <> 'step_audit') AS proven,
            bool_or(detector = 'step_audit') AS audit
        FROM trial_alerts JOIN trials USING (trial) WHERE step >= fault_step GROUP BY trial
    ), found AS (
        SELECT model, site, mix, status, audited,
            status = 'done' AND changed AND effect <> 'masked' AS scored,
            effect = 'masked' OR NOT changed AS masked,
            coalesce(sensor, false) AS sensor, coalesce(proven, false) AS proven,
            coalesce(audit, false) AS audit, manifest, replay_step IS NOT NULL AS replay
        FROM trials LEFT JOIN said USING (trial) WHERE site <> 'none'
    )
    SELECT model, site, mix, count(*), count(*) FILTER (status = 'failed'),
        count(*) FILTER (masked), count(*) FILTER (scored),
        count(*) FILTER (scored AND sensor), count(*) FILTER (scored AND proven),
        count(*) FILTER (scored AND audited), count(*) FILTER (scored AND audit),
        count(*) FILTER (scored AND manifest), count(*) FILTER (scored AND replay),
        count(*) FILTER (scored AND (sensor OR proven OR audit OR manifest OR replay))
    FROM found GROUP BY ALL ORDER BY ALL
"""
# A statistic may be wrong once in a while, and says so; what is exact may not.
_CONTROLS: Final = """
    SELECT count(*), count(*) FILTER (
        status <> 'done' OR first_differs IS NOT NULL OR replay_step IS NOT NULL
        OR manifest IS DISTINCT FROM false OR guard_errors > 0
        OR trial IN (SELECT trial FROM trial_alerts WHERE severity = 'proven')
    ) FROM trials WHERE site = 'none'
"""
_CLEAN: Final = """
    SELECT r.model, r.purpose, sum(r.steps)::BIGINT, (
        SELECT count(DISTINCT (seed, step)) FROM clean_alerts AS a
        WHERE a.model = r.model AND a.purpose = r.purpose
    ) FROM clean_runs AS r GROUP BY r.model, r.purpose ORDER BY ALL
"""
_FAILED: Final = """
    SELECT count(*), min(error) FROM trials WHERE status = 'failed'
    GROUP BY regexp_replace(error, '[0-9]+', '', 'g') ORDER BY 1 DESC LIMIT 5
"""
_SECONDS: Final = "SELECT median(seconds), median(cpu), max(rss) FROM timing WHERE what = 'trial'"


@dataclass(frozen=True)
class Cell:
    """Trials of one model, site and mix; counts.

    Attributes:
        trials: all; failed: that did not come to their end.
        masked: that changed no bit, or none that stayed.
        scored: the others.
        sensor: found by a statistic of the guard; proven: by its comparisons of bits while it
            trained; audit: by running the step again, of those `audited`; manifest: by reading
            the checkpoint; replay: by a replay afterwards; any: by any of these.
    """

    model: str
    site: str
    mix: str
    trials: int
    failed: int
    masked: int
    scored: int
    sensor: int
    proven: int
    audited: int
    audit: int
    manifest: int
    replay: int
    any: int


@dataclass(frozen=True)
class Summary:
    """All cells, and what else has to be right.

    Attributes:
        cells: in the order of model, site and mix.
        controls, differing: trials without a fault, and those of them that are not their twin.
        clean: (model, purpose, steps, steps with an alert) of runs without a fault.
        failures: (how many, a reason).
        seconds, cpu: medians of a trial's time by the clock, and of a core.
        rss: largest memory of a process, in bytes.
    """

    cells: tuple[Cell, ...]
    controls: int
    differing: int
    clean: tuple[tuple[str, str, int, int], ...]
    failures: tuple[tuple[int, str], ...]
    seconds: float | None
    cpu: float | None
    rss: int | None

    @property
    def sound(self) -> bool:
        """Whether each control is its twin, and no fault at rest or in a file stayed unseen.

        A trial of these that failed has shown nothing, and does not count as seen.
        """
        return not self.differing and all(
            cell.any == cell.scored and not cell.failed
            for cell in self.cells
            if cell.site in CERTAIN
        )

    def as_object(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "sound": self.sound}

    def lines(self) -> Iterator[str]:
        """A table for people."""
        yield (
            f"{'model':<9}{'site':<18}{'mix':<11}{'trials':>7}{'masked':>8}{'scored':>8}"
            f"{'sensor':>8}{'proven':>8}{'audited':>10}{'manifest':>10}{'replay':>8}{'any':>8}"
        )
        for cell in self.cells:
            audit = f"{cell.audit}/{cell.audited}" if cell.audited else ""
            yield (
                f"{cell.model:<9}{cell.site:<18}{cell.mix:<11}{cell.trials:>7}{cell.masked:>8}"
                f"{cell.scored:>8}{cell.sensor:>8}{cell.proven:>8}{audit:>10}{cell.manifest:>10}"
                f"{cell.replay:>8}{cell.any:>8}"
            )
        yield f"{self.controls} trials without a fault, {self.differing} not as their twin"
        for model, purpose, steps, alerts in self.clean:
            yield f"{model}, {purpose}: {steps:,} steps without a fault, {alerts} with an alert"
        for count, reason in self.failures:
            yield f"{count} trials failed: {reason}"
        if self.seconds is not None:
            memory = "" if self.rss is None else f", at most {self.rss / 2**20:.0f} MiB a process"
            core = "" if self.cpu is None else f", {self.cpu:.2f} s of a core"
            yield f"{self.seconds:.2f} s a trial{core} (medians){memory}"


def summarise(ask: Ask) -> Summary:
    """Sum up a campaign's file.

    Args:
        ask: gives the rows of a query.
    """
    controls, differing = ask(_CONTROLS)[0]
    seconds, cpu, rss = ask(_SECONDS)[0]
    return Summary(
        tuple(Cell(*row) for row in ask(_CELLS)),
        controls,
        differing,
        tuple(ask(_CLEAN)),
        tuple(ask(_FAILED)),
        seconds,
        cpu,
        rss,
    )
