"""What the ranks' rows say together: views over `layers`, as SQL.

    whole_layers  a row per attempt, step and layer
    whole_steps   a row per attempt and step, with the norm over all layers

Shards add up; what every rank holds whole is compared and counted once.
"""

from __future__ import annotations

from typing import Final

# Of one layer and step the rows of one scope count: what was reduced stands for what was local.
# `turn` orders the rows by scope and then by rank, so that the first row is found in one pass.
# Equality is by DuckDB's 64-bit hash of the five measures.
_WHOLE_LAYERS = """
    WITH placed AS (
        SELECT *, coalesce(copies, 1) AS held,
            CASE scope WHEN 'sharded' THEN 1 WHEN 'reduced' THEN 2 WHEN 'replicated' THEN 3
                ELSE 4 END AS place,
            place * 4294967296 + rank AS turn,
            hash(norm, max_abs, mean_abs, nonfinite, zeros) AS bits
        FROM layers
    ), combined AS (
        SELECT attempt, step, layer, min(place) AS place,
            sqrt(sum(norm * norm / held) FILTER (place = 1)) AS norm,
            max(max_abs) FILTER (place = 1) AS max_abs,
            sum(mean_abs / held) FILTER (place = 1) AS mean_abs,
            round(sum(nonfinite / held) FILTER (place = 1))::BIGINT AS nonfinite,
            round(sum(zeros / held) FILTER (place = 1))::BIGINT AS zeros,
            arg_min_null(norm, turn) AS own_norm,
            arg_min_null(max_abs, turn) AS own_max_abs,
            arg_min_null(mean_abs, turn) AS own_mean_abs,
            arg_min_null(nonfinite, turn) AS own_nonfinite,
            arg_min_null(zeros, turn) AS own_zeros,
            count(*) FILTER (place = 1) AS sharded,
            count(*) FILTER (place = 2) AS reduced,
            count(*) FILTER (place = 3) AS replicated,
            count(*) FILTER (place = 4) AS local,
            any_value(scope) FILTER (place = 4) AS other,
            min(bits) FILTER (place IN (2, 3)) = max(bits) FILTER (place IN (2, 3)) AS agree
        FROM placed GROUP BY attempt, step, layer
    )
    SELECT attempt, step, layer,
        CASE WHEN place = 1 THEN norm ELSE own_norm END AS norm,
        CASE WHEN place = 1 THEN max_abs ELSE own_max_abs END AS max_abs,
        CASE WHEN place = 1 THEN mean_abs ELSE own_mean_abs END AS mean_abs,
        CASE WHEN place = 1 THEN nonfinite ELSE own_nonfinite END AS nonfinite,
        CASE WHEN place = 1 THEN zeros ELSE own_zeros END AS zeros,
        CASE place WHEN 1 THEN 'sharded' WHEN 2 THEN 'reduced' WHEN 3 THEN 'replicated'
            ELSE coalesce(other, 'local') END AS scope,
        CASE place WHEN 1 THEN sharded WHEN 2 THEN reduced WHEN 3 THEN replicated
            ELSE local END AS ranks,
        CASE WHEN place IN (2, 3) AND ranks > 1 THEN agree END AS agree
    FROM combined
"""

_WHOLE_STEPS = """
    SELECT attempt, step, sqrt(sum(norm * norm)) AS norm, count(*) AS layers,
        sum(nonfinite)::BIGINT AS nonfinite, max(ranks) AS ranks, bool_and(agree) AS agree
    FROM whole_layers GROUP BY attempt, step
"""

VIEWS: Final = {"whole_layers": _WHOLE_LAYERS, "whole_steps": _WHOLE_STEPS}
