"""Ranks' gradients beside each other, on real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from distributed_launch import Outcome, launch
from distributed_peers import AT, BATCH_AT, BATCHS_RANK, LAYER, LAYERS_RANK

from sdc_guard import RunReader

SCENARIOS = ("peers_sound", "peers_faults")


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """All scenarios of four processes."""
    return launch(tmp_path_factory.mktemp("four"), 4, SCENARIOS)


def alerts(run: Path) -> list[dict[str, Any]]:
    """What the check alerted of: who recorded it, of which step and layer, and the detail."""
    with RunReader(run) as reader:
        rows = reader.rows(
            "SELECT rank, step, name, detector, severity, detail FROM alerts"
            " LEFT JOIN layer_names USING (layer) WHERE detector LIKE 'peer%' ORDER BY ALL"
        )
    return [
        {"by": by, "step": step, "layer": name, "detector": detector, "severity": severity}
        | json.loads(detail)
        for by, step, name, detector, severity, detail in rows
    ]


def events(run: Path) -> list[tuple[int, int, str]]:
    with RunReader(run) as reader:
        return reader.rows(
            "SELECT rank, step, detail FROM events WHERE kind = 'peers' ORDER BY ALL"
        )


def sound(outcome: Outcome, scenario: str) -> None:
    """No trouble on any rank, and the bits of the training without a guard."""
    for rank in range(outcome.world):
        told = outcome.told(scenario, rank)
        assert (told["health"], told["differences"]) == ((0, ""), []), rank


def test_sound_steps_raise_nothing_and_train_to_the_same_bits(four: Outcome) -> None:
    sound(four, "peers_sound")
    assert alerts(four.run("peers_sound")) == []
    assert events(four.run("peers_sound")) == []


def test_a_gradient_of_one_layer_on_one_rank_is_named(four: Outcome) -> None:
    sound(four, "peers_faults")
    found = [one for one in alerts(four.run("peers_faults")) if one["step"] == AT]
    assert {(one["by"], one["rank"], one["layer"]) for one in found} == {
        (LAYERS_RANK, LAYERS_RANK, LAYER)
    }
    norm = next(one for one in found if one["detector"] == "peer_norm")
    assert (norm["severity"], norm["steps"], norm["ranks"]) == ("suspect", 1, [0, 1, 2, 3])


def test_a_batch_of_garbage_accuses_the_batch_and_no_layer(four: Outcome) -> None:
    (alert,) = [one for one in alerts(four.run("peers_faults")) if one["step"] != AT]
    assert (alert["by"], alert["rank"], alert["step"]) == (BATCHS_RANK, BATCHS_RANK, BATCH_AT)
    assert (alert["detector"], alert["severity"]) == ("peer_rank", "suspect")
    assert alert["layer"] is None
    assert "all layers of rank 1: its batch or its loss, not a tensor" in alert["text"]
