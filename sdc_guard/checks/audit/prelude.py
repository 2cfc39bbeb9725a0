"""What a loss function does before it calls the model: it draws noise, it counts.

A step's state is taken when its forward begins, as nothing tells earlier that it does. What the
loss function changed by then has to be taken earlier still: when the micro-batch before was
observed, or the step before ended.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from ...signals.batch import batch_digest
from .generators import Generators
from .kept_step import KeptStep
from .outside import Outside
from .subject import Subject


class Prelude:
    """Learns it at the first step, and takes it early from then on.

    Args:
        subject: what is run.
    """

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._variables: set[Hashable] = set()
        self._drawn: set[str] = set()
        self._outside: Outside | None = None
        self._generators: Generators | None = None
        self._at_start: tuple[Outside, Generators] | None = None
        self._first: Generators | None = None
        self._looking = False
        self._inputs: list[torch.Tensor | None] = []

    def look_begins(self) -> None:
        """The loss function is about to be run, to learn what it does first."""
        self._at_start = self._subject.outside(), Generators.now(self._subject.devices)
        self._looking = True

    def called(self, given: Any) -> None:
        """The model is called, by a replay or a look.

        Args:
            given: to it.
        """
        self._inputs.append(batch_digest(given))
        if self._looking and self._at_start is not None:
            self._looking = False
            outside, generators = self._at_start
            self._variables = outside.different(self._subject.outside())
            self._drawn = generators.different(Generators.now(self._subject.devices))
        elif self._drawn and self._first is None:
            self._first = Generators.now(self._subject.devices)

    def look_ended(self) -> None:
        """It was run."""
        self._looking, self._at_start = False, None

    def take(self, *, outside: bool) -> None:
        """A micro-batch is over, and one of a step that is wanted comes next.

        Args:
            outside: whether the step is over, too.
        """
        if self._drawn:
            self._generators = Generators.now(self._subject.devices)
        if outside and self._variables:
            self._outside = self._subject.outside()

    def forget(self) -> None:
        """No step is wanted next."""
        self._outside = self._generators = None

    def outside(self) -> Outside:
        """State outside of the model as it was when the loss function began."""
        now = self._subject.outside()
        if self._outside is not None:
            now.take_from(self._outside, self._variables)
        return now

    def forward_begins(self, kept: KeptStep, given: Any) -> None:
        """The training calls the model.

        Args:
            given: to it.
        """
        kept.forward_begins(self._generators, self._drawn, batch_digest(given))

    # what a replay asks

    def first_call(self) -> Generators | None:
        """The generators at the first call since the last time this was asked, if they count."""
        first, self._first = self._first, None
        return first

    def inputs(self) -> list[torch.Tensor | None]:
        """Digests of what each call since the last time was given; None for one of no tensor."""
        inputs, self._inputs = self._inputs, []
        return inputs
