"""What a campaign does, and which trial a number means."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Final

from ..inject.fault import Draw, Fault, Site
from .mix import FILE_REALISTIC, MIXES, REALISTIC, draw_fault
from .tables import VERSION

MODELS: Final = ("gpt", "convnet")

# in a training of one process there is one gradient: "gradient" is hit when it has just been
# accumulated, "reduced_gradient" right before the optimizer reads it
SITES: Final[tuple[Site, ...]] = (
    "weight",
    "exp_avg",
    "exp_avg_sq",
    "step",
    "gradient",
    "reduced_gradient",
    "activation",
    "output_gradient",
    "batch",
    "file",
)
SITES_OF: Final[dict[str, tuple[Site, ...]]] = {"gpt": SITES, "convnet": (*SITES, "buffer")}

# bits of a word; a token is one of 256
_WIDTHS: Final[dict[tuple[str, str], int]] = {("gpt", "batch"): 8}
_WIDTH = 32
_WHOLE: Final = (("gpt", "batch"),)  # whole numbers, which no fault scales or makes infinite

# what a step that is run again before it is applied can see
COMPUTED: Final = ("gradient", "reduced_gradient", "activation", "output_gradient", "batch")

_EVERY_OTHER: Final = 3  # the first model takes so many turns to one of another

# A fault comes in the second to fourth step of a trial or, where steps are audited, in the fifth to
# seventh: an audit is sure of a difference once three steps have been seen to repeat, after a first
# one that it learns from. A long training is past that.
_EARLIEST, _EARLIEST_AUDITED, _OFFSETS = 2, 5, 3


@dataclass(frozen=True)
class Clean:
    """A clean run: of one of the purposes "calibration", "judging" and "twin"."""

    purpose: str
    model: str
    seed: int
    steps: int


@dataclass(frozen=True)
class Trial:
    """One trial; `fault` is None for a control.

    Attributes:
        number: from 0, negative of controls.
        kind: of fault in its mix.
        seed: of the twin.
        snapshot: the step after whose result it begins; it trains `after` steps.
        draws: seed of everything that the fault leaves open.
        audited: whether the guard runs each step again before it is applied.
    """

    number: int
    model: str
    seed: int
    snapshot: int
    after: int
    site: str
    mix: str
    kind: str
    fault: Fault | None
    draws: int
    audited: bool


@dataclass(frozen=True)
class Plan:
    """Everything that decides the rows of a campaign, the number of trials aside.

    The trial of a number does not depend on how many there are: a campaign can be made longer.

    Attributes:
        seed: of the trials.
        models, mixes, sites: of MODELS, MIXES and SITES_OF, in the order in which trials take
            turns; a model that has not got a site leaves it out.
        twins, calibration, judging: seeds of the clean runs.
        snapshots: steps of the twins at which trials begin.
        after: steps of a trial.
        clean_steps: of a run of calibration or judging.
        audited: of 100 trials whose fault lies in what is computed, those that audit their steps.
    """

    seed: int = 0
    models: tuple[str, ...] = MODELS
    mixes: tuple[str, ...] = MIXES
    sites: tuple[Site, ...] = (*SITES, "buffer")
    twins: tuple[int, ...] = (300, 301, 302, 303)
    calibration: tuple[int, ...] = tuple(range(100, 108))
    judging: tuple[int, ...] = tuple(range(200, 208))
    snapshots: tuple[int, ...] = (160, 240, 320)
    after: int = 10
    clean_steps: int = 800
    audited: int = 25

    def text(self) -> str:
        """As JSON, the same for the same plan and the same mixes."""
        mixed = {"shares": REALISTIC, "file_shares": FILE_REALISTIC}
        return json.dumps({"version": VERSION, **asdict(self), **mixed})

    def clean_runs(self) -> list[Clean]:
        """The runs whose alarms are false."""
        return [
            Clean(purpose, model, seed, self.clean_steps)
            for purpose, seeds in (("calibration", self.calibration), ("judging", self.judging))
            for seed in seeds
            for model in self.models
        ]

    def twin_runs(self) -> list[Clean]:
        """The runs that trials are compared with."""
        steps = max(self.snapshots) + self.after
        return [Clean("twin", model, seed, steps) for seed in self.twins for model in self.models]

    def controls(self) -> list[Trial]:
        """Trials without a fault: one per snapshot, and one more per twin that is audited."""
        plain = [
            Trial(0, model, seed, snapshot, self.after, "none", "none", "none", None, 0, audited)
            for model in self.models
            for seed in self.twins
            for snapshot in self.snapshots
            for audited in ((False, True) if snapshot == self.snapshots[0] else (False,))
        ]
        return [replace(trial, number=-1 - place) for place, trial in enumerate(plain)]

    def trial(self, number: int) -> Trial:
        """The trial of a number: models, mixes and sites take turns, the rest is drawn.

        The first model takes three turns to one of the other's.
        """
        cells = [cell for turn in range(_EVERY_OTHER) for cell in self._cells(turn)]
        model, mix, site = cells[number % len(cells)]
        draw = Draw(self.seed, "trial", number, 0)
        seed = self.twins[draw.below(len(self.twins), "twin")]
        snapshot = self.snapshots[draw.below(len(self.snapshots), "snapshot")]
        audited = site in COMPUTED and draw.below(100, "audited") < self.audited
        step = snapshot + self.after
        if site != "file":
            earliest = _EARLIEST_AUDITED if audited else _EARLIEST
            step = snapshot + earliest + draw.below(_OFFSETS, "offset")
        width = 8 if site == "file" else _WIDTHS.get((model, site), _WIDTH)
        whole = (model, site) in _WHOLE
        kind = draw_fault(mix, site, step, draw, width=width, whole=whole)
        return Trial(
            number, model, seed, snapshot, self.after, site, mix, kind.name, kind.fault,
            draw.below(2**31, "injector"), audited,
        )  # fmt: skip

    def _cells(self, turn: int) -> Iterator[tuple[str, str, Site]]:
        for site in self.sites:
            for mix in self.mixes:
                for place, model in enumerate(self.models):
                    if site in SITES_OF[model] and (place == 0 or turn == 0):
                        yield model, mix, site


def quick(plan: Plan) -> Plan:
    """A plan of two minutes: one twin, few and short clean runs."""
    return replace(
        plan, twins=(300,), calibration=(100,), judging=(200,), snapshots=(20, 30), clean_steps=60,
        after=8, audited=50,
    )  # fmt: skip
