"""Intervals, exponents and crossovers: what a table may say about a handful of measurements.

Every function takes plain numbers and returns an ``Estimate``; none invents an interval that the
data cannot give: with too few values ``low`` and ``high`` are NaN. Bad input (nothing at all, or
a value that is not finite) is a ValueError, so that a failed cell is dropped by the caller, who
can say so, and never averaged in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

Floats = NDArray[np.float64]


class Estimate(NamedTuple):
    """A value, the interval around it at ``confidence``, and the number of values it rests on."""

    value: float
    low: float
    high: float
    n: int
    confidence: float = 0.95


def _finite(values: Sequence[float], name: str = "values") -> Floats:
    array = np.asarray(values, dtype=np.float64).ravel()
    if array.size == 0:
        raise ValueError(f"{name}: at least one value is needed, there is none")
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: every value must be finite, got {array.tolist()}")
    return array


@lru_cache(maxsize=4096)
def _t(confidence: float, degrees: int) -> float:
    """Return the two-sided quantile of Student's t: asked for thousands of times a study."""
    return float(special.stdtrit(degrees, 0.5 + confidence / 2))


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Return the mean and Student's t interval of it (NaN bounds for a single value)."""
    array = _finite(values)
    mean = float(array.mean())
    if array.size < 2:
        return Estimate(mean, np.nan, np.nan, array.size, confidence)
    error = float(array.std(ddof=1)) / np.sqrt(array.size)
    half = _t(confidence, array.size - 1) * error
    return Estimate(mean, mean - half, mean + half, array.size, confidence)


def wilson(successes: int, n: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return Wilson's score interval for a share of ``successes`` in ``n`` trials.

    It keeps its coverage near 0 and 1, where accuracies live and where the normal interval would
    leave [0, 1] (E. B. Wilson, 1927, J. Am. Stat. Assoc. 22, 209-212).
    """
    if n < 1 or not 0 <= successes <= n:
        raise ValueError(
            f"successes and n: 0 <= successes <= n and n >= 1 are needed, got {successes} of {n}"
        )
    z = float(special.ndtri(0.5 + confidence / 2))
    share = successes / n
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    # At 0 and n successes one bound is 0 or 1 exactly; rounding must not push it beyond.
    low = 0.0 if successes == 0 else max(0.0, float(centre - half))
    high = 1.0 if successes == n else min(1.0, float(centre + half))
    return low, high


def binomial_quantile(probability: float, n: int, share: float) -> int:
    """Return the least count of successes in ``n`` trials that is not exceeded so often.

    ``probability`` in (0, 1); each trial succeeds with probability ``share`` < 1.
    """
    if n == 0 or share == 0:
        return 0
    # From the continuous inverse, which may lie one too high by rounding. (scipy.stats has this
    # ready, and takes a second to import: of every sweep's start.)
    count = int(np.ceil(special.bdtrik(probability, n, share)))
    return count - 1 if count and special.bdtr(count - 1, n, share) >= probability else count


def median_interval(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Return the median and its distribution-free interval: two of the values themselves.

    The number of values below the median is binomial(n, 1/2), so the r-th smallest and the r-th
    largest enclose it with a probability that no shape of the noise can change. r is the largest
    that still covers ``confidence``. Below 6 values not even the extremes cover 95%: then they
    are the bounds, and ``Estimate.confidence`` says what they really cover.
    """
    array = np.sort(_finite(values))
    n = array.size
    # The first count whose cumulative probability reaches the tail; all before it stay under.
    rank = binomial_quantile((1 - confidence) / 2, n, 0.5)
    median = float(np.median(array))
    if rank == 0:
        covered = 1 - 2.0 ** (1 - n)
        return Estimate(median, float(array[0]), float(array[-1]), n, covered)
    return Estimate(median, float(array[rank - 1]), float(array[n - rank]), n, confidence)


def spread(values: Sequence[float]) -> float:
    """Return the interquartile range over the median: how far repeated figures disagree."""
    low, median, high = np.quantile(_finite(values), [0.25, 0.5, 0.75])
    return float((high - low) / median)


def scaling_exponent(
    lengths: Sequence[float], values: Sequence[float], confidence: float = 0.95
) -> Estimate:
    """Return the exponent p of ``values ~ lengths**p``: a log-log least-squares fit and interval.

    The interval is Student's t of the slope with n - 2 degrees of freedom; two lengths give a
    slope without one. The fit knows nothing of a fixed cost: pass lengths past it.
    """
    x = _finite(lengths, "lengths")
    y = _finite(values)
    if x.size != y.size:
        raise ValueError(f"values: one for each length is needed, got {y.size} for {x.size}")
    if (x <= 0).any() or (y <= 0).any():
        raise ValueError("lengths and values: a power law needs every one above 0")
    if np.unique(x).size < 2:
        raise ValueError(f"lengths: at least two different ones are needed, got {x.tolist()}")
    x, y = np.log(x), np.log(y)
    centred = x - x.mean()
    slope = float(centred @ y / (centred @ centred))
    if x.size < 3:
        return Estimate(slope, np.nan, np.nan, x.size, confidence)
    residual = y - y.mean() - slope * centred
    error = np.sqrt(residual @ residual / (x.size - 2) / (centred @ centred))
    half = float(_t(confidence, x.size - 2) * error)
    return Estimate(slope, slope - half, slope + half, x.size, confidence)


def _crossings(log_lengths: Floats, log_ratios: Floats) -> Floats:
    """Return where each column of ``log_ratios`` (lengths, resamples) falls below 0 for good.

    0 where it starts below, inf where it is not below at the end.
    """
    n = log_lengths.size
    dear = log_ratios > 0
    last = n - 1 - np.argmax(dear[::-1], axis=0)
    inside = np.minimum(last, n - 2)
    columns = np.arange(log_ratios.shape[1])
    above, below = log_ratios[inside, columns], log_ratios[inside + 1, columns]
    cross = (above > 0) & (below <= 0)
    part = np.divide(above, above - below, out=np.zeros_like(above), where=cross)
    found = np.exp(log_lengths[inside] + part * (log_lengths[inside + 1] - log_lengths[inside]))
    found = np.where(last == n - 1, np.inf, found)
    return np.where(dear.any(axis=0), found, 0.0)


def crossover(
    lengths: Sequence[float],
    first: Sequence[Sequence[float]],
    second: Sequence[Sequence[float]],
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Estimate:
    """Return the length from which on ``first`` costs less than ``second``, by bootstrap.

    ``first`` and ``second`` hold the repeated measurements (time, bytes) at each of the rising
    ``lengths``. Between measured lengths the ratio of the medians is interpolated log-log. The
    value is 0 where ``first`` is cheaper at every length (the crossover lies below the smallest)
    and infinite where it is dearer at the largest; the bounds are percentiles over resampled
    measurements and may be 0 or infinite in the same sense. ``n`` counts measurements. One
    measurement a length (exact bytes) gives an interval of no width.
    """
    x = _finite(lengths, "lengths")
    if (np.diff(x) <= 0).any() or (x <= 0).any():
        raise ValueError(f"lengths: must rise from above 0, got {x.tolist()}")
    if not len(first) == len(second) == x.size:
        raise ValueError(
            f"first and second: one list for each of {x.size} lengths is needed, "
            f"got {len(first)} and {len(second)}"
        )
    samples = [
        [_finite(s, name) for s in side] for side, name in ((first, "first"), (second, "second"))
    ]
    if any((s <= 0).any() for side in samples for s in side):
        raise ValueError("first and second: every measurement must be above 0")
    log_lengths = np.log(x)
    middle = np.log([[np.median(s) for s in side] for side in samples])
    value = float(_crossings(log_lengths, (middle[0] - middle[1])[:, None])[0])
    generator = np.random.default_rng(seed)
    medians = np.empty((2, x.size, resamples))
    for side in range(2):
        for i, s in enumerate(samples[side]):
            drawn = generator.choice(s, size=(resamples, s.size))
            medians[side, i] = np.median(drawn, axis=1)
    log_ratios = np.log(medians[0]) - np.log(medians[1])
    crossings = _crossings(log_lengths, log_ratios)
    # Percentiles that are values themselves: between 0 and a length, or a length and infinity,
    # there is nothing to interpolate.
    low = float(np.quantile(crossings, (1 - confidence) / 2, method="lower"))
    high = float(np.quantile(crossings, (1 + confidence) / 2, method="higher"))
    n = sum(s.size for side in samples for s in side)
    return Estimate(value, low, high, n, confidence)


def paired_difference(
    first: Mapping[int, float], second: Mapping[int, float], confidence: float = 0.95
) -> Estimate:
    """Return the mean of ``first - second`` over the seeds both have, with its t interval.

    Two variants at one seed share data, order and starting weights, so their difference varies
    less than either: pairing sees effects that two separate intervals would hide.
    """
    seeds = sorted(set(first) & set(second))
    if not seeds:
        raise ValueError("first and second: they have no seed in common")
    return mean_interval([first[s] - second[s] for s in seeds], confidence)
