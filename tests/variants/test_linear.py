"""Linear attention against its definition, one number at a time."""

import pytest
import torch

from variants.linear import Linear


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("chunk", [1, 4, 7, 64])
def test_equals_the_sum_over_keys(causal, chunk):
    layer = Linear(chunk=chunk, d_model=6, n_heads=2, causal=causal).double()
    q, k, v = torch.randn(3, 1, 2, 19, 3, dtype=torch.float64)
    found = layer.attend(q, k, v, torch.tensor([17]))

    def feature(x):
        return torch.where(x > 0, x + 1, x.exp())

    for head in range(2):
        for i in range(17):
            keys = range(i + 1) if causal else range(17)
            shares = [float(feature(q[0, head, i]) @ feature(k[0, head, j])) for j in keys]
            total = sum(share * v[0, head, j] for share, j in zip(shares, keys, strict=True))
            torch.testing.assert_close(found[0, head, i], total / sum(shares))


def test_time_grows_with_the_length_and_not_its_square():
    layer = Linear(d_model=8, n_heads=2)
    assert layer.flops(2048) == 2 * layer.flops(1024)
    # Sums and products with them, 4 * 8 * 4 a position; and 64 keys within the chunk.
    assert layer.attend_flops(1024) == 1024 * (4 * 8 * 4 + 4 * 8 * 64)


def test_positions_inside_attention_are_refused():
    with pytest.raises(ValueError, match="positions: found 'rotary'; allowed: none, learned, sin"):
        Linear(d_model=8, n_heads=2, positions="rotary")
