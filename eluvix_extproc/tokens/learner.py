"""A linear model of a prompt's tokens, corrected by what answers report.

Recursive least squares (a Kalman filter of constant weights; Haykin, "Adaptive Filter Theory", chapter 10) that
starts from declared weights and trusts them as far as declared, with three guards, since evidence comes from clients'
texts and workers' figures:

* an answer far outside what is expected counts as one at the edge of it (Huber), both in the step and in the trust;
* every weight stays within declared bounds, every estimate within its prompt's;
* trust leaks back to the declared one, so that a model that changes behind its name is followed, and at once when
  answers keep lying far out on one side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import mul
from typing import NamedTuple

# What one answer may differ by from a linear model that knows all it can: tokens, and a share of the estimate.
_NOISE_TOKENS = 2.0
_NOISE_SHARE = 0.04
# How far out, in expected deviations, evidence is taken at its word.
_EDGE = 2.5
_LEAK = 5e-5
# So many answers in a row beyond the edge on one side are no outliers.
_CHANGED_AFTER = 6


class Weight(NamedTuple):
    """Tokens for one unit of a feature: as declared, how far that may be off, and bounds that hold always."""

    declared: float
    deviation: float
    least: float
    most: float


class Learner:
    """`learn` belongs to one thread; `weigh` may be called from any, `weights` being swapped whole.

    Costs O(k²) for the k features that have ever been other than zero; state is n² numbers for n features.
    """

    def __init__(self, features: Sequence[Weight]) -> None:
        self._features = tuple(features)
        self._trusted = [weight.deviation**2 for weight in features]
        self._spread = [[0.0] * len(self._features) for _ in self._features]
        self._live: list[int] = []
        self._far = 0
        self.weights = tuple(weight.declared for weight in features)
        self.learned = 0    # answers so far
        self._distrust()

    def weigh(self, values: Sequence[float]) -> float:
        """Estimated tokens, not bounded."""
        return float(sum(map(mul, self.weights, values)))

    def learn(self, values: Sequence[float], reported: float) -> None:
        """`values` are finite and not negative, one per feature; `reported` tokens are what they came to."""
        if not (math.isfinite(reported) and all(map(math.isfinite, values))):
            return
        expected = self.weigh(values)
        unit = 1.0 / (_NOISE_TOKENS + _NOISE_SHARE * max(expected, reported, 0.0))
        active = [(index, value * unit) for index, value in enumerate(values) if value]
        if not active:
            return
        self._live = sorted({*self._live, *(index for index, _ in active)})
        live, spread = self._live, self._spread
        reach = [0.0] * len(self._features)
        for row in live:
            line = spread[row]
            reach[row] = sum([line[index] * value for index, value in active])
        variance = 1.0 + sum([reach[index] * value for index, value in active])
        step = (reported - expected) * unit
        edge = _EDGE * math.sqrt(variance)
        heed = min(1.0, edge / abs(step)) if step else 1.0
        self._correct(reach, step * heed / variance)
        self._narrow(reach, heed / variance)
        self.learned += 1
        self._far = 0 if heed == 1.0 else max(self._far, 0) + 1 if step > 0 else min(self._far, 0) - 1
        if abs(self._far) >= _CHANGED_AFTER:
            self._far = 0
            self._distrust()

    def _correct(self, reach: Sequence[float], step: float) -> None:
        weights = list(self.weights)
        for index in self._live:
            feature = self._features[index]
            weights[index] = min(max(weights[index] + reach[index] * step, feature.least), feature.most)
        self.weights = tuple(weights)

    def _narrow(self, reach: Sequence[float], share: float) -> None:
        live, spread, keep = self._live, self._spread, 1.0 - _LEAK
        for place, row in enumerate(live):
            line, pull = spread[row], reach[row] * share
            for column in live[place:]:
                line[column] = spread[column][row] = (line[column] - pull * reach[column]) * keep
            line[row] = max(line[row], 0.0) + _LEAK * self._trusted[row]

    def _distrust(self) -> None:
        for row, line in enumerate(self._spread):
            line[:] = [0.0] * len(line)
            line[row] = self._trusted[row]
