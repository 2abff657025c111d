"""Position encodings: how a model tells the order of its tokens.

By name: ``none``; ``learned`` (a table added to the embeddings); ``sinusoidal`` (Vaswani et al.
2017, section 3.5, added to the embeddings); ``rotary`` (Su et al. 2021, RoFormer: queries and keys
are turned by an angle that grows with their position); ``alibi`` (Press et al. 2022: each score
loses a slope times its distance).

The first two act on embeddings, in ``spanwise.model``; the last two act on queries and keys, in
``variants.interface.AttentionVariant``.

Shape suffixes: B batch, H heads, L sequence length, D head_dim.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

NAMES = ("none", "learned", "sinusoidal", "rotary", "alibi")
ON_EMBEDDINGS = ("none", "learned", "sinusoidal")


@lru_cache(maxsize=16)
def sinusoidal(
    length: int, d_model: int, dtype: torch.dtype, device: torch.device | None = None
) -> Tensor:
    """Return the (length, d_model) table of Vaswani et al. 2017: sines even, cosines odd."""
    with torch.inference_mode(False):
        angles = _angles(length, math.ceil(d_model / 2), d_model)
        table = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
        return table[:, :d_model].to(device=device, dtype=dtype)


def rotate(x_BHLD: Tensor, start: int = 0, horizon: int | None = None) -> Tensor:
    """Turn each pair of dimensions (2i, 2i+1) at position p by the angle p * 10000**(-2i/D).

    The product of a turned query and a turned key depends on their distance only (Su et al.
    2021, RoFormer, section 3.2). D must be even. ``start``: position of the first of L, in a
    sequence of ``horizon`` (default: that ends with it).
    """
    *_, length, head_dim = x_BHLD.shape
    tables = _turns(horizon or start + length, head_dim, x_BHLD.dtype, x_BHLD.device)
    cos, sin = (table[start : start + length] for table in tables)
    even, odd = x_BHLD[..., 0::2], x_BHLD[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def alibi_slopes(n_heads: int) -> Tensor:
    """Return the (H,) float64 slopes of Press et al. 2022: 2**(-8/n), 2**(-16/n), ... for n heads.

    Where n is not a power of two, the slopes of the power of two below come first, then every
    second one of the power of two above, as in the authors' code.
    """
    below = 2 ** int(math.log2(n_heads))
    slopes = [2 ** (-8 * (h + 1) / below) for h in range(below)]
    above = [2 ** (-8 * (h + 1) / (2 * below)) for h in range(2 * below)]
    return torch.tensor(slopes + above[0::2][: n_heads - below], dtype=torch.float64)


def add_alibi(
    q_BHLD: Tensor,
    k_BHLD: Tensor,
    slopes_H: Tensor,
    scale: float,
    start: int = 0,
    horizon: int | None = None,
) -> tuple[Tensor, Tensor]:
    """Append dimensions to q and k so that q @ k * scale also holds slope * (key's position).

    A softmax does not change when a whole row gains a constant, so for keys at or before their
    query, slope * j stands for -slope * (i - j): exact, with no L x L bias formed. Negative slopes
    serve heads that look ahead. Positions are counted from the middle, which halves the largest
    term; in half precision a position is split into digits of base 256, each held exactly (one
    more dimension), while the products are summed in float32 by the kernels.

    The error that is left is the rounding of a score of size slope * L / 2: in float32, about
    1e-4 at L = 8,192 for the steepest slope. k may have fewer heads than q. ``start``: position
    of the first of L, in a sequence of ``horizon`` (default: that ends with it).
    """
    batch, heads, length, _ = k_BHLD.shape
    horizon = horizon or start + length
    positions = torch.arange(start, start + length, device=k_BHLD.device) - horizon // 2
    digits, largest = [positions], (horizon + 1) // 2
    if k_BHLD.dtype in (torch.bfloat16, torch.float16):
        while largest > 256:
            digits[-1:] = [digits[-1] % 256, digits[-1].div(256, rounding_mode="floor")]
            largest = -(-largest // 256)
    # Rounded once, before the powers of 256 (which are exact): every digit has the same slope.
    slopes = (slopes_H.to(k_BHLD.device) / scale).to(q_BHLD.dtype)
    weights = torch.stack([slopes * 256**power for power in range(len(digits))], dim=-1)
    q_more = weights[None, :, None, :].expand(batch, -1, q_BHLD.shape[2], -1)
    k_more = torch.stack(digits, dim=-1).to(k_BHLD.dtype).expand(batch, heads, -1, -1)
    return torch.cat((q_BHLD, q_more), dim=-1), torch.cat((k_BHLD, k_more), dim=-1)


def pad_like(v_BHLD: Tensor, k_BHLD: Tensor) -> Tensor:
    """Widen v with zeros to k's last dimension: fused kernels want q, k and v equally wide."""
    return F.pad(v_BHLD, (0, k_BHLD.shape[-1] - v_BHLD.shape[-1]))


def _angles(length: int, count: int, dimension: int) -> Tensor:
    """Return the (length, count) angles p * 10000**(-2i/dimension), in float64.

    float32 would be off by 1e-3 radians at position 10,000 already.
    """
    rates = 10000.0 ** (-2 * torch.arange(count, dtype=torch.float64) / dimension)
    return torch.arange(length, dtype=torch.float64)[:, None] * rates


@lru_cache(maxsize=16)
def _turns(
    length: int, head_dim: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    # A tensor made in inference mode could not be saved for a later backward pass.
    with torch.inference_mode(False):
        angles = _angles(length, head_dim // 2, head_dim)
        return (
            angles.cos().to(device=device, dtype=dtype),
            angles.sin().to(device=device, dtype=dtype),
        )
