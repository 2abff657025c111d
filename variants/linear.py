"""Linear attention: a positive feature map in place of the exponential, and sums instead of scores.

Shape suffixes: B batch, H heads, N chunks, C positions in a chunk, D head_dim.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from spanwise.positions import ON_EMBEDDINGS
from variants.decoding import StateCache, check_next
from variants.interface import AttentionVariant, padding, whole


class Linear(AttentionVariant):
    """out_i = sum_j (f(q_i) . f(k_j)) v_j / sum_j f(q_i) . f(k_j), with f(x) = elu(x) + 1.

    The sums over j are taken once for all queries; under causality chunk by chunk: a running sum
    of f(k) v^T up to each chunk of ``chunk`` positions, and the scores within it. Time and memory
    grow with L. ``scale`` means nothing here: the normaliser takes it out where f is linear.
    """

    label = "Linear"
    colour = "#882255"
    paper = "Katharopoulos et al. 2020, arXiv:2006.16236"
    positions_allowed = ON_EMBEDDINGS
    """A turn or a bias of q and k would pass through f and lose its meaning."""
    is_softmax = False
    check_parameters = {"chunk": 5}  # noqa: RUF012

    def __init__(self, chunk: int = 64, **attention: Any):
        super().__init__(**attention)
        self.chunk = whole("chunk", chunk)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the outputs (B, H, L, D)."""
        f_q, f_k, v_one = self._features(q, k, v, lengths)
        summed = self._causal(f_q, f_k, v_one) if self.causal else f_q @ (f_k.mT @ v_one)
        return self._normalised(summed).to(v.dtype)

    def weights(self, q: Tensor, k: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return each key's share in each output, (B, H, L, L), by the quadratic form."""
        f_q, f_k, _ = self._features(q, k, k, lengths)
        scores = f_q @ f_k.mT
        scores = scores.tril() if self.causal else scores
        padded = padding(lengths, q.shape[2])
        if padded is not None:
            scores = scores.masked_fill(padded[:, None], 0)
        total = scores.sum(-1, keepdim=True)
        return (scores / torch.where(total > 0, total, 1)).to(q.dtype)

    def cache(self, horizon: int, batch: int = 1) -> StateCache | None:
        """Return an empty running sum of f(k) v^T, of one size whatever the length."""
        if not self.causal:
            return None
        weight, width = self.W_q.weight, self.head_dim
        dtype = torch.promote_types(weight.dtype, torch.float32)
        zero = weight.new_zeros(batch, self.n_heads, width, width + 1, dtype=dtype)
        return StateCache(zero, horizon)

    def prefill(self, x: Tensor, cache: StateCache) -> None:
        """Read x (B, L, d_model) into the running sum."""
        _, f_k, v_one = self._features(*self.project(x), None)
        cache.state = cache.state + f_k.mT @ v_one
        cache.length += x.shape[1]

    def decode(self, x: Tensor, cache: StateCache) -> Tensor:
        """Return the next position's output (B, 1, d_model) from its input (B, 1, d_model)."""
        check_next(x, cache)
        self.prefill(x, cache)
        f_q, _, _ = self._features(*self.project(x), None)
        out = self._normalised(f_q @ cache.state).to(x.dtype)
        return self.W_o(out.transpose(1, 2).flatten(2))

    def attend_flops(self, length: int, batch: int = 1) -> float:
        """Return the operations: sums of f(k) v^T and products with f(q), and within chunks."""
        within = min(self.chunk, length) if self.causal else 0
        return 4.0 * batch * length * self.d_model * (self.head_dim + within)

    def _causal(self, f_q: Tensor, f_k: Tensor, v_one: Tensor) -> Tensor:
        length = f_q.shape[2]
        q, k, v = (
            F.pad(x, (0, 0, 0, -length % self.chunk)).unflatten(2, (-1, self.chunk))
            for x in (f_q, f_k, v_one)
        )
        sums_BHNDD = k.mT @ v
        before = sums_BHNDD.cumsum(2) - sums_BHNDD
        out = q @ before + (q @ k.mT).tril() @ v
        return out.flatten(2, 3)[:, :, :length]

    @staticmethod
    def _normalised(summed: Tensor) -> Tensor:
        out, total = summed[..., :-1], summed[..., -1:]
        return out / torch.where(total > 0, total, 1)

    @staticmethod
    def _features(
        q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return f(q), f(k) and v with a column of ones for the normaliser."""
        # Sums over a whole sequence need more digits than half precision has.
        dtype = torch.promote_types(q.dtype, torch.float32)
        f_q, f_k = (F.elu(x.to(dtype)) + 1 for x in (q, k))
        padded = padding(lengths, q.shape[2])
        if padded is not None:
            f_k = f_k.masked_fill(padded[:, None], 0)
        return f_q, f_k, F.pad(v.to(dtype), (0, 1), value=1)
