"""Coefficients of iterations that send every singular value in [lowest, 1] to 1.

Two families. A *minimax quintic* a·x + b·x³ + c·x⁵ deviates least from 1 on an interval; composing them greedily grows a
small singular value about 4.1-fold a step (Amsel et al. 2025, Polar Express; Grishina et al. 2025, CANS). The *weighted
Halley* map x(a + b·x²)/(1 + c·x²) needs a Cholesky factorisation but handles any condition number in few steps
(Nakatsukasa, Bai & Gygi 2010): three steps from 1e-7.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

Triple = tuple[float, float, float]


@lru_cache
def minimax_quintics(lowest: float, tolerance: float, cushion: float, margin: float) -> tuple[Triple, ...]:
    """Quintics that bring [lowest, 1] to within `tolerance` of 1, in as few steps as the greedy choice needs.

    cushion: intervals are never taken wider than [cushion·u, u]. Without it large singular values are mapped down to
        the small ones and rounding mixes them.
    margin: each interval is widened by this share at its top. The top is an unstable fixed point (slope near -12), so a
        rounding error beyond it would grow from step to step.
    """
    low, high, steps = lowest, 1.0, []
    while max(1 - low, high - 1) > tolerance:
        high *= 1 + margin
        start = max(low, cushion * high)
        a, b, c = _minimax_quintic(start, high)
        steps.append((a, b, c))
        error = 1 - (a * start + b * start**3 + c * start**5)
        low, high = a * low + b * low**3 + c * low**5, 1 + error
    return tuple(steps)


def _minimax_quintic(low: float, high: float) -> Triple:
    """Remez exchange: the odd quintic whose error on [low, high] is least, with its four extremes of equal size."""
    inner, outer = (3 * low + high) / 4, (low + 3 * high) / 4
    while True:
        points = np.array([low, inner, outer, high])
        system = np.stack([points, points**3, points**5, np.array([1.0, -1.0, 1.0, -1.0])], axis=1)
        a, b, c, _ = (float(value) for value in np.linalg.solve(system, np.ones(4)))
        root = math.sqrt(max(9 * b * b - 20 * a * c, 0.0))
        moved = math.sqrt((-3 * b - root) / (10 * c)), math.sqrt((-3 * b + root) / (10 * c))
        if abs(moved[0] - inner) + abs(moved[1] - outer) < 1e-9:  # the error is flat there: this is full precision
            return a, b, c
        inner, outer = moved


@lru_cache
def halley_weights(lowest: float, steps: int) -> tuple[tuple[Triple, ...], float]:
    """`steps` weight triples for singular values in [lowest, 1], and where the interval's lower end is after them."""
    low, weights = lowest, []
    for _ in range(steps):
        square = low * low
        d = (4 * (1 - square) / square**2) ** (1 / 3)
        root = math.sqrt(1 + d)
        a = root + 0.5 * math.sqrt(8 - 4 * d + 8 * (2 - square) / (square * root))
        b = (a - 1) ** 2 / 4
        c = a + b - 1
        weights.append((a, b, c))
        low = low * (a + b * square) / (1 + c * square)
    return tuple(weights), low
