"""How far the blocks kernel reaches: memory and planning of long sequences.

    python -m benchmarks.reach                 1,048,576 tokens, bytes a token, planning
    python -m benchmarks.reach --length 65536  a shorter reach, printed only

The tables of the first are kept under results/reference/speed/ with the machine's facts.

Three tables. One training step (forward and backward of one attention operation) at the given
length, with the resident peak of this process, inputs and libraries included. The exact peak of
live tensor bytes a token, q, k, v and the incoming gradient included, from 4,096 to 262,144 tokens.
The time and the resident memory that planning takes, beside torch's create_block_mask where that
ends within minutes (it looks at every pair).
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.contenders import rules
from benchmarks.options import Parser, at_least, check_memory
from benchmarks.table import add_write, check_kept, command_line, kept_as, show, write
from spanwise.attention import kernel_flops, plan, rule_attention
from spanwise.attention.expression import Rule
from spanwise.attention.flex import mask_mod
from spanwise.attention.plan import forget
from spanwise.memory import measure_peak

TOKENS = tuple(4096 << i for i in range(7))
DENSE_PLANNING = 16_384  # create_block_mask is left out beyond
MOST_OPERATIONS = 1 << 44  # of the longest step; some minutes on two cores
GIB = float(1 << 30)


class Resident:
    """The most bytes of this process that were resident in a ``with`` block (Linux)."""

    def __enter__(self) -> Resident:
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
        self.before = self._read("VmRSS")
        return self

    def __exit__(self, *exception: object) -> None:
        self.peak = self._read("VmHWM")
        self.grown = self.peak - self.before

    @staticmethod
    def _read(name: str) -> int:
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) << 10
        raise OSError(f"/proc/self/status has no {name}: the resident peak is read on Linux")


def training_step(
    length: int, heads: int, dim: int, sees: Rule | None, causal: bool
) -> Callable[[], object]:
    """Return forward and backward of one operation on inputs that are there already."""
    q, k, v, grad = (torch.randn(1, heads, length, dim) for _ in range(4))
    for x in (q, k, v):
        x.requires_grad_()

    def step() -> object:
        out = rule_attention(q, k, v, sees, causal, kernel="blocks")
        return torch.autograd.grad(out, (q, k, v), grad)

    return step


def reach(length: int, options: argparse.Namespace) -> dict[str, Any]:
    """Run one training step at ``length``; one row."""
    (sees,), causal = rules(options.window)["window"]
    with Resident() as resident:
        step = training_step(length, options.heads, options.head_dim, sees, causal)
        began = time.perf_counter()
        step()
        took = time.perf_counter() - began
    return {
        "length": length,
        "window": options.window,
        "heads": options.heads,
        "head_dim": options.head_dim,
        "resident_peak_gib": round(resident.peak / GIB, 2),
        "inputs_gib": round(4 * 4 * length * options.heads * options.head_dim / GIB, 2),
        "step_with_planning_s": round(took, 2),
    }


def bytes_a_token(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the exact peak of a training step at each length; one row each."""
    (sees,), causal = rules(options.window)["window"]
    rows: list[dict[str, Any]] = []
    for length in TOKENS:
        step = training_step(length, options.heads, options.head_dim, sees, causal)
        step()  # plans and masks are built once and kept
        inputs = 4 * 4 * options.heads * options.head_dim
        each = measure_peak(step).peak / length + inputs
        base = rows[0]["bytes_a_token"] if rows else each
        rows.append(
            {
                "length": length,
                "bytes_a_token": round(each, 1),
                "against_the_shortest": round(each / base, 4),
            }
        )
    return rows


def planning(length: int, window: int) -> dict[str, Any]:
    """Return what planning a causal window takes, beside create_block_mask."""
    from torch.nn.attention.flex_attention import create_block_mask

    (sees,), causal = rules(window)["window"]
    plan(sees, 1024, causal)  # what is imported and traced only once
    forget()
    with Resident() as resident:
        began = time.perf_counter()
        made = plan(sees, length, causal)
        took = time.perf_counter() - began
    row: dict[str, Any] = {
        "length": length,
        "plan_s": round(took, 4),
        "plan_resident_mib": round(resident.grown / (1 << 20), 1),
        "tiles": made.tiles_computed,
    }
    if length <= DENSE_PLANNING:
        mask = mask_mod(sees, causal)
        create_block_mask(mask, None, None, 128, 128, device="cpu")
        with Resident() as resident:
            began = time.perf_counter()
            create_block_mask(mask, None, None, length, length, device="cpu")
            took = time.perf_counter() - began
        row["create_block_mask_s"] = round(took, 3)
        row["create_block_mask_resident_mib"] = round(resident.grown / (1 << 20), 1)
    return row


def main(arguments: list[str] | None = None) -> None:
    """Measure, print and keep the tables."""
    parser = Parser(__doc__)
    parser.add_argument(
        "--length", type=at_least(1), default=1 << 20, help="tokens of the longest step"
    )
    parser.add_argument("--window", type=at_least(1), default=256)
    parser.add_argument("--heads", type=at_least(1), default=4)
    parser.add_argument("--head-dim", type=at_least(1), default=64)
    add_write(parser)
    options = parser.parse_args(arguments)
    lengths = sorted({8192, DENSE_PLANNING, options.length})
    longest = max(options.length, *TOKENS)
    # Inputs and the incoming gradient, the output, and three gradients of its own.
    needed = 8 * 4 * longest * options.heads * options.head_dim
    check_memory(parser, f"a step at {longest:,} tokens", needed)
    pairs = longest * min(options.window, longest)
    if kernel_flops(pairs, options.heads, options.head_dim, train=True) > MOST_OPERATIONS:
        parser.error(
            f"a step at {longest:,} tokens, window {options.window:,}: more than "
            f"{MOST_OPERATIONS:,} operations; allowed: a smaller window, or fewer tokens"
        )
    kept = kept_as(parser, options, "reach")
    check_kept(parser, kept)
    command = command_line("benchmarks.reach", arguments)
    for title, table in (
        ("planning", lambda: [planning(length, options.window) for length in lengths]),
        ("step", lambda: [reach(options.length, options)]),
        ("bytes_a_token", lambda: bytes_a_token(options)),
    ):
        rows = table()
        show(rows, title)
        if kept:
            write(f"{kept}_{title}", rows, command)


if __name__ == "__main__":
    main()
