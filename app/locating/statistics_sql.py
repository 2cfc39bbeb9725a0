"""The statistics of a layer's gradient that are compared, as SQL over a row of `layers`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_LARGEST: Final = "1.7976931348623157e308"


@dataclass(frozen=True)
class Statistic:
    """One statistic.

    Attributes:
        name: for people and in addresses.
        column: of `layers`.
        share: whether it counts elements, so that their log-odds are compared.
        floor: s₀ in the denominator of z, in the unit of the compared number: the sensor's.
        meaning: in a few words.
    """

    name: str
    column: str
    share: bool
    floor: float
    meaning: str

    @property
    def ordered(self) -> str:
        """A number that grows with the compared one and costs less, NULL where there is none.

        Of a share it is the compared one itself, and needs `numel`.
        """
        x = self.column
        if self.share:
            # as the sensor counts zeros: a few among many, and a row of a matrix, are little
            return (
                f"CASE WHEN {x} IS NOT NULL THEN ln(({x} + 4 + sqrt(numel) / 2)"
                f" / (greatest(numel - {x}, 0) + 0.5)) END"
            )
        return f"CASE WHEN {x} > 0 AND {x} <= {_LARGEST} THEN {x} END"

    def compared_of(self, ordered: str) -> str:
        """The compared number of this `ordered` one."""
        return ordered if self.share else f"ln({ordered})"

    @property
    def compared(self) -> str:
        """The number that is compared, NULL where there is none; of a share it needs `numel`."""
        return self.compared_of(self.ordered)

    @property
    def bad(self) -> str:
        """Whether anything of the row is not finite."""
        own = "" if self.share else f" OR NOT coalesce(isfinite({self.column}), true)"
        return f"(coalesce(nonfinite, 0) > 0{own})"

    @property
    def zero(self) -> str:
        """Whether it is a true zero, which has no logarithm."""
        return "false" if self.share else f"coalesce({self.column} = 0, false)"

    @property
    def source(self) -> str:
        """The rows."""
        return "layers JOIN layer_names USING (layer)" if self.share else "layers"


STATISTICS: Final = {
    statistic.name: statistic
    for statistic in (
        Statistic("norm", "norm", False, 0.05, "log of the gradient's norm"),
        Statistic("max_abs", "max_abs", False, 0.05, "log of the largest |g|"),
        Statistic("mean_abs", "mean_abs", False, 0.05, "log of the mean |g|"),
        Statistic("zeros", "zeros", True, 0.25, "log-odds of an element to be exactly 0"),
        Statistic("nonfinite", "nonfinite", True, 0.25, "log-odds of an element to be NaN or ∞"),
    )
}

# One number for layer, rank and scope: grouping by it is far quicker than by three columns.
PLACE: Final = """((layer::BIGINT * 16777216 + rank) * 8 + CASE scope WHEN 'local' THEN 1
    WHEN 'reduced' THEN 2 WHEN 'sharded' THEN 3 WHEN 'replicated' THEN 4 WHEN 'partial' THEN 5
    ELSE 0 END)"""
SCOPES: Final = ("", "local", "reduced", "sharded", "replicated", "partial")
LAYER_OF: Final = "(place // 134217728)"
RANK_OF: Final = "(place // 8 % 16777216)"
SCOPE_OF: Final = "(place % 8)"
