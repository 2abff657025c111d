"""The estimators of the noise study, on samples whose truth is known."""

import pytest

from benchmarks.noise import ESTIMATORS, table


def sample(turn: int, slowness: list[float]) -> dict:
    """Return work worth 3 calibrations, on a machine that slows down as told from run to run.

    Two works take turns; before, between and after them stands a calibration.
    """
    calibration = [10 * s for s in slowness]
    around = [(slowness[i] + slowness[i + 1]) / 2 for i in range(turn, len(slowness) - 1, 2)]
    work = [30 * s for s in around]
    return {
        "turn": turn,
        "turns": 2,
        "ms": work,
        "cpu_ms": work,
        "calibration_ms": calibration,
        "calibration_cpu_ms": calibration,
        "softmax_ms": [5.0],
        "attention_ms": [5.0],
    }


@pytest.mark.parametrize("turn", [0, 1])
def test_pairing_finds_the_products_beside_each_repetition(turn: int) -> None:
    found = sample(turn, [1.0, 1.5, 3.0, 2.0, 5.0, 1.0, 1.2, 4.0, 9.0])
    assert ESTIMATORS["ratio, median, paired before and after"](found) == pytest.approx(3)
    assert ESTIMATORS["cpu ratio, median, paired"](found) == pytest.approx(3)
    assert ESTIMATORS["ratio of medians"](found) != pytest.approx(3, rel=0.05)


def test_the_table_gives_spread_and_what_load_moved() -> None:
    quiet = [{"cell": sample(0, [s] * 5)} for s in (1.0, 1.1, 1.2)]
    loaded = [{"cell": sample(0, [s] * 5)} for s in (2.0, 2.2, 2.4)]
    lines = dict(
        zip(
            ["head", *ESTIMATORS],
            table({"quiet": quiet, "loaded": loaded}).split("\n"),
            strict=True,
        )
    )
    # Three processes at 1, 1.1 and 1.2: quartiles 1.05 and 1.15 around 1.1.
    assert "9.1%" in lines["raw ms, median"]
    assert "x2.00" in lines["raw ms, median"]
    assert "0.0%" in lines["ratio of medians"]
    assert "x1.00" in lines["ratio of medians"]
