import math

import numpy as np
import pytest
from scipy import stats

from spanwise.statistics import (
    binomial_quantile,
    crossover,
    mean_interval,
    median_interval,
    paired_difference,
    scaling_exponent,
    spread,
    wilson,
)


def test_mean_interval_by_hand() -> None:
    # 1, 2, 3: mean 2, deviation 1, t(0.975, 2) = 4.302653; half = 4.302653 / sqrt(3).
    estimate = mean_interval([1.0, 2.0, 3.0])
    assert estimate.value == 2.0
    assert estimate.high - 2.0 == pytest.approx(4.302652729 / math.sqrt(3))
    assert estimate.low == pytest.approx(4.0 - estimate.high)
    assert estimate.n == 3


def test_one_value_has_a_mean_and_no_interval() -> None:
    estimate = mean_interval([0.7])
    assert estimate.value == 0.7
    assert math.isnan(estimate.low)
    assert math.isnan(estimate.high)


def test_binomial_quantile_is_scipys() -> None:
    for n in (0, 1, 5, 17, 400, 3000):
        for share in (0.0, 1 / 64, 0.1, 0.5, 0.9):
            for probability in (1e-6, 0.025, 0.3, 0.5, 0.975, 0.9995):
                expected = stats.binom.ppf(probability, n, share)
                assert binomial_quantile(probability, n, share) == expected, (n, share, probability)


@pytest.mark.parametrize(("successes", "n"), [(0, 7), (7, 7), (1, 1), (3, 10), (999, 1000)])
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
def test_wilson_is_scipys(successes: int, n: int, confidence: float) -> None:
    reference = stats.binomtest(successes, n).proportion_ci(confidence, method="wilson")
    assert wilson(successes, n, confidence) == pytest.approx((reference.low, reference.high))


def test_wilson_refuses_what_cannot_be() -> None:
    with pytest.raises(ValueError, match="got 5 of 4"):
        wilson(5, 4)
    with pytest.raises(ValueError, match="n >= 1"):
        wilson(0, 0)


@pytest.mark.parametrize("n", [6, 9, 20, 51, 200])
def test_median_interval_is_scipys_quantile_test(n: int) -> None:
    values = np.random.default_rng(n).exponential(size=n)
    reference = stats.quantile_test(values, q=0, p=0.5).confidence_interval(0.95)
    estimate = median_interval(values)
    assert (estimate.low, estimate.high) == pytest.approx((reference.low, reference.high))
    assert estimate.value == pytest.approx(np.median(values))


def test_five_values_cannot_give_95_percent_and_say_so() -> None:
    estimate = median_interval([5.0, 1.0, 4.0, 2.0, 3.0])
    assert estimate[:3] == (3.0, 1.0, 5.0)
    assert estimate.confidence == 1 - 2 / 2**5


def test_median_interval_covers_under_skew() -> None:
    generator = np.random.default_rng(1)
    truth = math.log(2)
    hits = sum(
        low <= truth <= high
        for _, low, high, *_ in (
            median_interval(generator.exponential(size=15)) for _ in range(2000)
        )
    )
    assert hits / 2000 > 0.95  # exact coverage for n = 15 is 0.9648


def test_exponent_is_scipys_regression() -> None:
    lengths = [128, 256, 512, 1024, 2048]
    noise = np.random.default_rng(3).lognormal(sigma=0.1, size=5)
    values = [3e-4 * length**1.7 * e for length, e in zip(lengths, noise, strict=True)]
    reference = stats.linregress(np.log(lengths), np.log(values))
    estimate = scaling_exponent(lengths, values)
    assert estimate.value == pytest.approx(reference.slope)
    half = stats.t.ppf(0.975, 3) * reference.stderr
    assert (estimate.low, estimate.high) == pytest.approx(
        (reference.slope - half, reference.slope + half)
    )


def test_exponent_of_two_lengths_has_no_interval() -> None:
    estimate = scaling_exponent([10, 100], [1.0, 100.0])
    assert estimate.value == pytest.approx(2.0)
    assert math.isnan(estimate.low)


@pytest.mark.parametrize(
    ("lengths", "values", "message"),
    [
        ([10, 10], [1, 2], "two different"),
        ([10, 20], [1, 0], "above 0"),
        ([10, 20], [1, math.nan], "finite"),
        ([10, 20], [1], "one for each length"),
    ],
)
def test_exponent_refuses(lengths: list[float], values: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scaling_exponent(lengths, values)


def test_crossover_of_two_power_laws_is_where_they_meet() -> None:
    # 200 L against L^2: they meet at L = 200, between two measured lengths.
    lengths = [64, 128, 256, 512]
    estimate = crossover(lengths, [[200.0 * n] for n in lengths], [[float(n * n)] for n in lengths])
    assert estimate.value == pytest.approx(200.0)
    assert (estimate.low, estimate.high) == pytest.approx((200.0, 200.0))


def test_crossover_is_where_the_first_stays_cheaper() -> None:
    # Cheaper, dearer, cheaper: only the last crossing lasts.
    estimate = crossover([1, 2, 4, 8], [[1], [4], [2], [1]], [[2], [2], [2], [2]])
    assert estimate.value == pytest.approx(4.0)


def test_crossover_outside_the_measured_lengths_is_said_to_be() -> None:
    lengths = [64, 128]
    assert crossover(lengths, [[1.0], [1.0]], [[2.0], [2.0]]).value == 0.0
    assert crossover(lengths, [[2.0], [2.0]], [[1.0], [1.0]]).value == math.inf


def test_crossover_interval_widens_with_noise_and_covers() -> None:
    lengths = [64, 128, 256, 512]
    widths = []
    for sigma in (0.02, 0.2):
        hits = 0
        total = 0.0
        for trial in range(60):
            generator = np.random.default_rng(trial)
            first = [200.0 * n * generator.lognormal(sigma=sigma, size=15) for n in lengths]
            second = [n * n * generator.lognormal(sigma=sigma, size=15) for n in lengths]
            estimate = crossover(lengths, first, second, resamples=400)
            hits += estimate.low <= 200.0 <= estimate.high
            total += estimate.high - estimate.low
        assert hits >= 51
        widths.append(total)
    assert widths[1] > 5 * widths[0]


def test_paired_difference_sees_what_the_seeds_share() -> None:
    # The seeds differ by tenths, the variants by a hundredth at every seed.
    first = {seed: 0.1 * seed + 0.01 for seed in range(5)}
    second = {seed: 0.1 * seed for seed in (4, 3, 2, 1)}
    estimate = paired_difference(first, second)
    assert estimate.value == pytest.approx(0.01)
    assert estimate.n == 4
    assert estimate.low > 0.0099
    with pytest.raises(ValueError, match="no seed in common"):
        paired_difference({1: 0.5}, {2: 0.5})


def test_spread_by_hand() -> None:
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
