"""The SQL of `compare`: a run against its replay, which is attached as the schema "other".

Layers are matched by name, rows of the same rank with each other, gradients of the same scope.
"""

from __future__ import annotations

from typing import Final

# A digest of the replay beside the same one of the run
_SAME_DIGEST = """
    d.layer = n.layer AND d.step = o.step AND d.phase = o.phase AND d.kind = o.kind
        AND d.rank = o.rank
"""
_SAME_GRADIENT = """
    l.layer = n.layer AND l.step = o.step AND l.rank = o.rank
        AND coalesce(l.scope, 'local') = coalesce(o.scope, 'local')
"""

# What a run always digests if it digests everything; gradients and buffers are asked for apart,
# and of step counters there are only those that changed
STATE_ONLY: Final = "kind NOT IN ('grad', 'buffer', 'step')"

# Steps of which both hold the row and what can be asked for: of a run that digests every tensor
# at every step all digests, of one with a digest budget all gradients.
STEPS_BOTH: Final = f"""
    WITH undigested AS (
        SELECT o.step FROM other.digests AS o JOIN other.layer_names AS m USING (layer)
        LEFT JOIN layer_names AS n USING (name) LEFT JOIN digests AS d ON {_SAME_DIGEST}
        WHERE d.step IS NULL AND o.{STATE_ONLY}
    ), unmeasured AS (
        SELECT o.step FROM other.layers AS o JOIN other.layer_names AS m USING (layer)
        LEFT JOIN layer_names AS n USING (name) LEFT JOIN layers AS l ON {_SAME_GRADIENT}
        WHERE l.step IS NULL
    )
    SELECT DISTINCT s.step
    FROM steps AS s JOIN other.steps AS o USING (step, rank)
    LEFT JOIN attempts ON attempts.attempt = s.attempt
    WHERE s.step BETWEEN $first AND $last
        AND (attempts.digest_budget IS NOT NULL OR s.step NOT IN (SELECT step FROM undigested))
        AND (attempts.digest_budget IS NULL OR s.step NOT IN (SELECT step FROM unmeasured))
        AND s.step IN (SELECT step FROM other.digests WHERE phase = 'after')
"""

# Per step and phase: digests in both, and in either
DIGESTS_BOTH: Final = f"""
    WITH ours AS (
        SELECT DISTINCT step, phase, kind, layer, rank FROM digests
        WHERE step BETWEEN $first AND $last AND {STATE_ONLY}
    ), held AS (
        SELECT o.step, o.phase, count(*) AS theirs, count(d.step) AS shared
        FROM other.digests AS o JOIN other.layer_names AS m USING (layer)
        LEFT JOIN layer_names AS n USING (name) LEFT JOIN ours AS d ON {_SAME_DIGEST}
        WHERE o.step BETWEEN $first AND $last AND o.{STATE_ONLY} GROUP BY o.step, o.phase
    ), counted AS (
        SELECT step, phase, count(*) AS own FROM ours GROUP BY step, phase
    )
    SELECT step, phase, coalesce(shared, 0),
        coalesce(theirs, 0) + coalesce(own, 0) - coalesce(shared, 0)
    FROM held FULL JOIN counted USING (step, phase)
"""

STATE: Final = f"""
    SELECT count(DISTINCT (kind, layer, rank)) FROM other.digests
    WHERE step BETWEEN $first AND $last AND {STATE_ONLY}
"""

# What both digested: without buffers in it, nothing is known of buffers
KINDS_BOTH: Final = f"""
    SELECT DISTINCT o.kind
    FROM other.digests AS o JOIN other.layer_names AS m USING (layer)
    JOIN layer_names AS n USING (name) JOIN digests AS d ON {_SAME_DIGEST}
    WHERE o.step BETWEEN $first AND $last
"""

# IS DISTINCT FROM, because NaN and NULL on both sides are equal here. The loss scale and whether
# the step was skipped were not always recorded: NULL on one side says nothing.
STEP_ROWS: Final = """
    SELECT step, bool_or(batch), bool_or(loss), bool_or(lr), bool_or(scale), bool_or(skipped),
        list(rank) FILTER (batch OR loss OR lr OR scale OR skipped)
    FROM (
        SELECT step, rank, s.batch_hash IS DISTINCT FROM o.batch_hash AS batch,
            s.loss IS DISTINCT FROM o.loss AS loss, s.lr IS DISTINCT FROM o.lr AS lr,
            coalesce(s.loss_scale <> o.loss_scale, false) AS scale,
            coalesce(s.skipped <> o.skipped, false) AS skipped
        FROM steps AS s JOIN other.steps AS o USING (step, rank)
        WHERE step BETWEEN $first AND $last
    )
    GROUP BY step HAVING bool_or(batch OR loss OR lr OR scale OR skipped)
"""

GRADIENTS: Final = f"""
    SELECT o.step, n.name, o.rank, coalesce(o.scope, 'local')
    FROM other.layers AS o JOIN other.layer_names AS m USING (layer)
    JOIN layer_names AS n USING (name) JOIN layers AS l ON {_SAME_GRADIENT}
    WHERE o.step BETWEEN $first AND $last
        AND (l.norm, l.max_abs, l.mean_abs, l.nonfinite, l.zeros)
            IS DISTINCT FROM (o.norm, o.max_abs, o.mean_abs, o.nonfinite, o.zeros)
    ORDER BY o.step, n.layer, o.rank
"""

# Of step counters there are only those that changed: one that changed in the run and has no such
# row in the replay did not change there
DIGESTS: Final = f"""
    SELECT DISTINCT o.step, o.phase, o.kind, n.layer, n.name, o.rank
    FROM other.digests AS o JOIN other.layer_names AS m USING (layer)
    JOIN layer_names AS n USING (name) JOIN digests AS d ON {_SAME_DIGEST}
    WHERE o.step BETWEEN $first AND $last
        AND (d.h, d.s1, d.s2) IS DISTINCT FROM (o.h, o.s1, o.s2)
    UNION
    SELECT d.step, d.phase, d.kind, n.layer, n.name, d.rank
    FROM digests AS d JOIN layer_names AS n USING (layer)
    WHERE d.step BETWEEN $first AND $last AND d.kind = 'step' AND d.phase = 'before'
        AND (d.step, d.rank) IN (SELECT (step, rank) FROM other.steps)
        AND (d.step, d.rank, n.name) NOT IN (
            SELECT (o.step, o.rank, m.name)
            FROM other.digests AS o JOIN other.layer_names AS m USING (layer)
            WHERE o.kind = 'step' AND o.phase = 'before'
        )
    ORDER BY step, rank, layer, kind
"""

# What the replay found before its first step against what the run had left there: not comparable
# where the script writes to the state between the two on purpose.
NOT_RESTORED: Final = """
    SELECT DISTINCT o.kind, n.layer, n.name, o.rank
    FROM other.digests AS o JOIN other.layer_names AS m USING (layer)
    JOIN layer_names AS n USING (name)
    JOIN digests AS d ON d.layer = n.layer AND d.kind = o.kind AND d.rank = o.rank
    WHERE o.step = $first AND o.phase = 'before' AND d.step = $first - 1 AND d.phase = 'after'
        AND (d.h, d.s1, d.s2) IS DISTINCT FROM (o.h, o.s1, o.s2)
        AND NOT EXISTS (SELECT 1 FROM events WHERE kind = 'refresh' AND step = $first)
        AND NOT EXISTS (SELECT 1 FROM other.events WHERE kind = 'refresh' AND step = $first)
    ORDER BY o.rank, n.layer, o.kind
"""

# Whether both digested gradients at a step
GRADIENT_DIGESTS: Final = """
    SELECT EXISTS (SELECT 1 FROM digests WHERE step = $step AND kind = 'grad')
        AND EXISTS (SELECT 1 FROM other.digests WHERE step = $step AND kind = 'grad')
"""
