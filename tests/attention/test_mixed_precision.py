"""Under autocast every kernel answers in the type in which torch's own attention answers."""

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from spanwise.attention import rule_attention

LONG = 4096  # here "auto" takes blocks, at 64 torch's own entry


def drawn(length, dtype, dim=8):
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(1, 1, length, dim, generator=generator).to(dtype).requires_grad_()
        for _ in range(3)
    ]


@pytest.mark.parametrize("cast_to", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kernel", ["dense", "fused", "blocks", "auto"])
def test_output_and_gradients_are_of_torchs_own_types(kernel, dtype, cast_to):
    qkv = drawn(64, dtype)
    with torch.autocast("cpu", dtype=cast_to):
        want = scaled_dot_product_attention(*qkv, is_causal=True)
        got = rule_attention(*qkv, lambda q, k: q - k < 64, kernel=kernel)
        inside = torch.autograd.grad(got.float().sum(), qkv, retain_graph=True)
    outside = torch.autograd.grad(got.float().sum(), qkv)
    assert got.dtype == want.dtype == (dtype if dtype == torch.float64 else cast_to)
    assert (got - want).abs().max() <= 2**-6 * want.abs().max()
    expected = torch.autograd.grad(want.float().sum(), qkv)
    for theirs, ours, same in zip(expected, outside, inside, strict=True):
        assert ours.dtype == same.dtype == dtype
        bound = 2**-5 * max(1.0, float(theirs.abs().max()))
        assert (ours - theirs).abs().max() <= bound
        assert (same - theirs).abs().max() <= bound


def test_auto_answers_in_one_type_at_every_length():
    kinds = set()
    for length in (64, LONG):
        with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
            out = rule_attention(*drawn(length, torch.float32), lambda q, k: q - k < 16)
        kinds.add(out.dtype)
    assert kinds == {torch.bfloat16}


def test_q_and_k_of_two_types_meet_in_autocasts():
    q, k, v = drawn(64, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = rule_attention(q.bfloat16(), k, v, lambda q, k: q - k < 16)
    assert out.dtype == torch.bfloat16


@pytest.mark.parametrize("kernel", ["dense", "fused", "blocks", "auto"])
def test_without_autocast_types_stay(kernel):
    with torch.autocast("cpu", enabled=False):
        out = rule_attention(*drawn(64, torch.float32), lambda q, k: q - k < 16, kernel=kernel)
    assert out.dtype == torch.float32
