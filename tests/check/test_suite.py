"""Results, messages, expected failures, stacks, pytest and the command line."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest

from spanwise.check import CHECKS, Result, check_variant
from spanwise.check.action import run
from tests.mutants import kernels, rules
from variants.full import Full
from variants.interleaved import Interleaved
from variants.windowed import Windowed

ROOT = Path(__file__).parents[2]


def only(factory, check):
    (result,) = check_variant(factory, [check])
    return result


def test_a_failure_names_the_first_position_and_what_was_expected():
    more = only(partial(rules.OneKeyMore, window=32), "check_window")
    assert more.message == (
        "causal, window 1: query 1 sees 2 keys (keys 0 to 1); "
        "expected a window of 1, itself included"
    )
    wraps = only(partial(kernels.WrapsAround, window=32), "check_receptive_field")
    assert wraps.message == (
        "causal, length 23: query 0 is changed by key 19; "
        "expected it to see keys 0, it sees keys 0, 19 to 22"
    )
    future = only(partial(kernels.FutureSeen, window=32), "check_causality")
    assert future.message.startswith("causal: the output at position 0 changes by")
    assert future.message.endswith("when positions 1 to 22 do; expected no change")


def test_a_known_failure_is_expected_and_its_end_is_told():
    class Known(rules.OneKeyMore):
        """One key more, as in the paper."""

        expected_failures: ClassVar = {"check_window": "the paper's window leaves out the query"}

    known = only(partial(Known, window=32), "check_window")
    assert known.status == "expected_failure"
    assert known.message.startswith("the paper's window leaves out the query (causal, window 1")

    class Mended(Windowed):
        """Right again."""

        expected_failures: ClassVar = {"check_window": "one key more"}

    mended = only(partial(Mended, window=32), "check_window")
    assert mended.status == "failed"
    assert "passes, but is expected to fail (one key more)" in mended.message


def test_what_does_not_apply_is_skipped_with_the_reason():
    result = only(Full, "check_window")
    assert result == Result("check_window", "skipped", "the variant has no window")


def test_an_exception_is_a_failure_in_one_line():
    result = only(partial(kernels.LengthMustDivide, window=32), "check_every_length")
    expected = "raises RuntimeError: length 14 must be divisible by window 5"
    assert (result.status, result.message) == ("failed", expected)


def test_each_different_layer_of_a_stack_is_checked():
    stack = partial(Interleaved, partial(rules.OneKeyMore, window=32), Full, every=3)
    results = check_variant(stack, ["check_window", "check_causality"])
    assert [(r.check, r.status) for r in results] == [
        ("layer 0: check_window", "failed"),
        ("layer 0: check_causality", "passed"),
        ("layer 1: check_window", "skipped"),
        ("layer 1: check_causality", "passed"),
    ]


def test_the_action_prints_a_table_and_says_by_its_exit_code(capsys):
    target = {"_target_": "variants.windowed.Windowed", "window": 16}
    assert run({"variant": target}, {"variant": "windowed"}) == 0
    assert "windowed: " in capsys.readouterr().out
    target = {"_target_": "tests.mutants.rules.OneKeyMore", "window": 16}
    assert run({"variant": target}, {"variant": "mine"}) == 1
    out = capsys.readouterr().out
    assert "1 failed" in out
    assert "query 1 sees 2 keys" in " ".join(out.split())


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("raises", "raises RuntimeError: target: third_party_targets.raises raises RuntimeError"),
        ("eights", "the length must be a multiple of 8"),
        ("nan_at_three", "causal, on 2 sequences of 23 in float64: returns NaN or infinity"),
    ],
)
def test_one_cause_of_nearly_every_failure_is_told_once(capsys, target, why):
    variant = {"_target_": "variants.external.Function", "direction": "causal"}
    variant["target"] = f"third_party_targets.{target}"
    assert run({"variant": variant}, {"variant": "theirs"}) == 1
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("variant=theirs: ")
    assert why in line
    assert line.endswith("nothing else was checked")


PACKAGE = '''
from spanwise.attention import rule_attention
from variants.interface import RuleAttention


class Broken(RuleAttention):
    """Sees every second key, or so it says; the future too."""

    label, colour = "Broken", "#123456"

    def sees(self, q, k):
        return (q - k) % 2 == 0

    def attend(self, q, k, v, lengths):
        return rule_attention(q, k, v, self.sees, False, lengths, self.scale)
'''


@pytest.fixture
def users_package(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "broken.py").write_text(PACKAGE)
    (tmp_path / "configs" / "variant").mkdir(parents=True)
    config = tmp_path / "configs" / "variant" / "broken.yaml"
    config.write_text("_target_: mine.broken.Broken\n")
    return tmp_path


def test_a_users_own_variant_is_checked_from_the_command_line(users_package):
    done = subprocess.run(
        [
            sys.executable,
            str(ROOT / "runner.py"),
            "action=check",
            "variant=broken",
            f"hydra.searchpath=[file://{users_package}/configs]",
        ],
        env=os.environ | {"PYTHONPATH": str(users_package), "COLUMNS": "200"},
        cwd=users_package,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    (line,) = (x for x in done.stdout.splitlines() if "causality" in x and "failed" in x)
    assert "the output at position 0 changes" in line
    (line,) = (x for x in done.stdout.splitlines() if "receptive_field" in x)
    assert "query 0 is changed by key 2" in line
    assert "expected it to see keys 0" in line


def test_bad_arguments_of_a_shipped_variant_are_one_line():
    done = subprocess.run(
        [sys.executable, "runner.py", "action=check", "variant=windowed", "variant.window=-1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "window: found -1; allowed: a whole number of at least 1" in line


def test_every_check_says_what_it_checks():
    assert len(CHECKS) >= 30
    assert all(check.__doc__ for check in CHECKS.values())
