"""What Adam's recursions can reach: the limits of its moments and of its steps, rounding included.

**Exact arithmetic.** With m ← β₁m + (1−β₁)g and v ← β₂v + (1−β₂)g², both zero at the start, the
inequality of Cauchy and Schwarz gives |m| ≤ c·√v at every step, whatever the gradients g:

    c² = (1−β₁)² / ((1−β₂)(1−β₁²/β₂)),   for β₁² < β₂:   c = 7.27 for (0.9, 0.999)

Gradients in proportion to (β₁/β₂)^−step attain it in the limit. What g is does not matter: weight
decay added to it, `maximize`, clipping, accumulation and unscaling change both moments alike.
`amsgrad` only makes the denominator of a step larger. If β₁² ≥ β₂ nothing is bounded.

**Changing betas.** If |m|² ≤ C·v before an update, then |m|² ≤ (r·C + a)·v after it, with
r = β₁²/β₂ and a = (1−β₁)²/(1−β₂). So C stays below the largest a/(1−r) = c² of all betas so far:
in any order, and also for a parameter that sat out some of the updates. C = 0 at a zero start. Of
a loaded state only C ≤ EARLIER is assumed, which any betas up to β₂ = 0.9999 with
β₁²/β₂ ≤ 0.99 keep; after n more updates C ≤ c² + EARLIER·rⁿ, c again after about a hundred.

**Rounding.** An update rounds a few times: to the precision that it computes in (`work`: 2⁻²⁴ for
float32 and below) and to the one that the moments are kept in (`store`: 2⁻⁸ for bfloat16). Each is
a relative error of the new value, and with it of all that the moment remembers: just as if each
update had used slightly other betas, a larger β₁ and a smaller β₂. So the slack does not grow with
the number of steps: old errors decay with the gradients that they came with. For float32 it is
below 1e-4 of c; for bfloat16 and (0.9, 0.999), where v may not decay at all, c is 7.59. A
result below the smallest normal number may be lost entirely: at most 4·tiny an update, which adds
up to 4·tiny/(1−β₂) in v and 4·tiny/(1−β₁) in m. That is nothing but in float16, where moments
below 0.08 are not bounded at all.

**A step.** For lr ≥ 0, |Δθ| ≤ lr·(c·√(1−β₂ᵗ)/(1−β₁ᵗ) + wd·|θ|), t the number of updates; wd
only where it is decoupled. For ε = 0, or so small that underflow in v can matter, nothing is
bounded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

EARLIER: Final = 1e6  # assumed of m²/v in a state whose past is unknown


@dataclass(frozen=True)
class Rounding:
    """Errors of arithmetic with a dtype.

    Attributes:
        store: unit roundoff of the dtype that results are kept in.
        work: unit roundoff of the precision that they are computed in.
        tiny: what a result may lose to underflow, flushing to zero included.
    """

    store: float
    work: float
    tiny: float


ROUNDING: Final = {
    "float64": Rounding(2.0**-53, 2.0**-53, 2.0**-1022),
    "float32": Rounding(2.0**-24, 2.0**-24, 2.0**-126),
    "bfloat16": Rounding(2.0**-8, 2.0**-24, 2.0**-126),
    "float16": Rounding(2.0**-11, 2.0**-24, 2.0**-24),
}


@dataclass(frozen=True)
class MomentLimit:
    """|m| ≤ √square·√(v + v_lost) + m_lost; an infinite square bounds nothing.

    Attributes:
        square: c², with the slack of rounding.
        ratio: β₁²/β₂ with the same slack: by which C decays in an update.
        v_lost: what underflow may have taken from v.
        m_lost: what it may have put into m.
    """

    square: float
    ratio: float
    v_lost: float
    m_lost: float

    def joined(self, other: MomentLimit) -> MomentLimit:
        """The limit where some updates were made with these betas and some with the other's."""
        return MomentLimit(
            max(self.square, other.square),
            max(self.ratio, other.ratio),
            max(self.v_lost, other.v_lost),
            max(self.m_lost, other.m_lost),
        )

    @property
    def bounded(self) -> bool:
        """Whether anything is bounded."""
        return math.isfinite(self.square)


UNBOUNDED: Final = MomentLimit(math.inf, math.inf, 0.0, 0.0)


def moment_limit(
    beta1: float, beta2: float, rounding: Rounding, *, tensors: bool = False
) -> MomentLimit:
    """The limit of Adam's moments for constant betas.

    Args:
        beta1: of the first moment, in [0, 1).
        beta2: of the second moment, in [0, 1).
        rounding: of the moments' dtype.
        tensors: the betas are tensors, which torch converts to the moments' dtype.
    """
    store, work = rounding.store, 8 * rounding.work
    off = store if tensors else 0.0  # of β₁ itself, and so of 1−β₁
    times = 3 if tensors else 2  # v is kept twice in an update, g·(1−β₂) once
    kept1 = (beta1 + off + work) * (1 + store)
    taken1 = (1 - beta1 + off) * (1 + work) * (1 + store)
    kept2 = beta2 * (1 - work) * (1 - store) ** times
    taken2 = (1 - beta2) * (1 - work) * (1 - store) ** times
    if kept2 <= 0 or kept1 >= 1 or kept1**2 >= kept2:
        return UNBOUNDED
    ratio = kept1**2 / kept2
    return MomentLimit(
        square=taken1**2 / (taken2 * (1 - ratio)) * (1 + work),
        ratio=ratio,
        v_lost=4 * rounding.tiny / (1 - kept2),
        m_lost=4 * rounding.tiny / (1 - kept1),
    )


@dataclass(frozen=True)
class StepSlack:
    """|Δθ| ≤ lr·(c·(1 + relative)·√(1−β₂ᵗ)/(1−β₁ᵗ) + wd·|θ| + lost/(1−β₁ᵗ)) + rounded·|θ|.

    Attributes:
        relative: rounding of the quotient, and of bias corrections computed in `work`.
        lost_per_c: underflow of v, per unit of c; lost = lost_per_c·c + lost.
        lost: underflow of m.
        rounded: rounding of the parameter itself.
    """

    relative: float
    lost_per_c: float
    lost: float
    rounded: float


def step_slack(
    limit: MomentLimit, beta1: float, beta2: float, eps: float, rounding: Rounding
) -> StepSlack | None:
    """The slack of one step, or None where underflow may matter: nothing is bounded then."""
    if not limit.bounded or eps <= 0:
        return None
    slack = StepSlack(
        # 1−βᵗ of a float32 βᵗ is at its worst at t = 1
        relative=8 * (rounding.store + rounding.work * (1 + 1 / (1 - beta1) + 1 / (1 - beta2))),
        lost_per_c=math.sqrt(limit.v_lost) / eps,
        lost=limit.m_lost / eps,
        rounded=2 * rounding.store + 8 * rounding.work,
    )
    return slack if slack.lost_per_c < 1 and slack.lost < 1 else None
