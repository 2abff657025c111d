"""The one interface of a variant: what mixes information along a sequence.

Three base classes, each giving more for less; override as little as possible:

- ``Variant``: override ``forward``. For what is not attention (a recurrence, a convolution).
- ``AttentionVariant``: owns the projections, the heads and their positions; override ``attend``.
- ``RuleAttention``: override ``sees``. For what only restricts who scores whom.

Where ``cache`` gives one, a layer also works token by token: ``prefill``, then ``decode``.

``Stack`` (variants/stack.py) is a pattern of layers made of any of these; the checks of
constructor arguments (``whole``, ``fraction`` ...) are in variants/parameters.py.

Shape suffixes: B batch, L sequence length, H heads, G key/value heads, D head_dim.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from spanwise.attention import dense_mask, keys_per_query, rule_attention
from spanwise.positions import (
    NAMES,
    ON_EMBEDDINGS,
    add_alibi,
    alibi_slopes,
    pad_like,
    rotate,
)
from variants.decoding import Cache, KeyValueCache, check_next
from variants.parameters import described, fraction, one_of, own_parameters, positive, whole
from variants.stack import Stack

__all__ = [
    "AttentionVariant",
    "RuleAttention",
    "Stack",
    "Variant",
    "fraction",
    "one_of",
    "positive",
    "whole",
]


class Variant(nn.Module):
    """Mixes information along the sequence: ``forward(x, lengths) -> y``, both (B, L, d_model).

    The model gives the keywords below to every variant; they are kept as attributes of the same
    names. ``causal``: position i depends on positions up to i only. ``lengths`` (B,) int64 or
    None: content at or past a sequence's length is never used, and the output there is 0.

    ``label``, ``colour`` (of the Okabe-Ito palette) and ``paper`` are for tables and figures.
    """

    label: ClassVar[str] = ""
    colour: ClassVar[str] = "#000000"
    paper: ClassVar[str] = ""
    positions_allowed: ClassVar[tuple[str, ...]] = ON_EMBEDDINGS
    """What is no attention has no queries and keys for an encoding to act on."""
    trains_on_cpu: ClassVar[bool] = True
    """False where there is no backward pass on the CPU: there only forward is measured."""
    expected_failures: ClassVar[dict[str, str]] = {}
    """Names of checks (``spanwise.check``) that this variant is known to fail: the reason why."""
    check_parameters: ClassVar[dict[str, Any]] = {}
    """Own parameters at which the checks, on some twenty positions, exercise the variant."""

    def __init__(
        self,
        d_model: int,
        n_heads: int = 1,
        causal: bool = True,
        positions: str = "none",
        dropout: float = 0.0,
        scale: float | None = None,
        kv_heads: int | None = None,
    ):
        super().__init__()
        self.d_model = whole("d_model", d_model)
        self.n_heads = whole("n_heads", n_heads)
        self.kv_heads = self.n_heads if kv_heads is None else whole("kv_heads", kv_heads)
        self.causal = causal
        self.positions = one_of("positions", positions, self.positions_allowed)
        self.dropout = fraction("dropout", dropout)
        self.scale: Any = scale
        if not isinstance(causal, bool):
            raise ValueError(f"causal: found {causal!r}; allowed: True or False")

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return y (B, L, d_model) from x (B, L, d_model)."""
        raise NotImplementedError

    def cache(self, horizon: int, batch: int = 1) -> Cache | None:
        """Return an empty memory for generating up to ``horizon`` tokens one by one.

        None where the variant cannot: it looks ahead, or has no such form. A variant that can
        overrides this, ``prefill`` and ``decode``.
        """
        return None

    def prefill(self, x: Tensor, cache: Any) -> None:
        """Read x (B, L, d_model) into an empty cache."""
        raise NotImplementedError

    def decode(self, x: Tensor, cache: Any) -> Tensor:
        """Return the next position's output (B, 1, d_model) from its input (B, 1, d_model)."""
        raise NotImplementedError

    def step(self, x: Tensor) -> Tensor:
        """Return what one step brings to each position, (B, L, d_model) from (B, L, d_model).

        A step is what happens at once, all positions side by side: here the whole layer. A
        variant that works through the positions one after another overrides it.
        """
        return self(x)

    def rehearse(self, length: int, dtype: torch.dtype) -> None:
        """Raise ValueError where a short run shows that the layer is not what it says.

        Called before any cell of this length and type starts. For what cannot be trusted; by
        default nothing.
        """

    def own_parameters(self) -> dict[str, Any]:
        """Return the arguments that this variant's own constructor adds, as they were set."""
        return own_parameters(self, shared=Variant)

    def describe(self) -> str:
        """Return the label with this variant's own parameters, for legends."""
        return described(self.label or type(self).__name__, self.own_parameters())

    def keys_per_query(self, length: int) -> float | None:
        """Return the mean number of keys a query sees; None where the notion does not apply."""
        return None

    def flops(self, length: int, batch: int = 1) -> float | None:
        """Return the operations of a forward pass (a multiply-add is 2); None where unknown."""
        return None

    def visibility(self, length: int) -> Tensor | None:
        """Return who sees whom as bool (L, L), row = query, for a small length; None if unknown."""
        return None

    def beyond_window(self, q: Any, k: Any) -> Any:
        """Return whether the query at q sees the key at k for another reason than its ``window``.

        Global tokens, for instance: what is left must be a window of exactly that size.
        """
        return False


class AttentionVariant(Variant):
    """Multi-head attention around ``attend``: softmax or any other formula.

    Projections without bias (Vaswani et al. 2017, section 3.2.2); ``scale`` multiplies the scores,
    1/sqrt(head_dim) by default. ``kv_heads`` < n_heads shares each key and value head between
    n_heads / kv_heads consecutive query heads (Ainslie et al. 2023, GQA; 1 is Shazeer 2019).
    Dropout acts on the output, in training only.

    ALiBi without the causal mask takes the form that its author proposed for encoders
    (github.com/ofirpress/attention_with_linear_biases/issues/5, "nonsymmetric"): the first half
    of the heads looks back, the other half ahead, each with the slopes of its own count.
    """

    positions_allowed: ClassVar[tuple[str, ...]] = NAMES
    is_softmax: ClassVar[bool] = True
    """False where ``attend`` is another formula than a softmax over the keys seen."""
    two_sided_alibi: ClassVar[bool] = False
    """True where ``attend`` honours ``groups``, as bidirectional ALiBi needs."""

    def __init__(self, d_model: int, n_heads: int, **keywords: Any):
        super().__init__(d_model, n_heads, **keywords)
        if self.d_model % self.n_heads:
            raise ValueError(f"n_heads: found {n_heads}; allowed: a divisor of d_model {d_model}")
        if self.n_heads % self.kv_heads:
            raise ValueError(
                f"kv_heads: found {self.kv_heads}; allowed: a divisor of n_heads {n_heads}"
            )
        self.head_dim = self.d_model // self.n_heads
        if self.scale is None:
            self.scale = 1 / math.sqrt(self.head_dim)
        self.scale = positive("scale", self.scale)
        if self.positions == "rotary" and self.head_dim % 2:
            raise ValueError(
                f"positions: found rotary with head_dim {self.head_dim} (d_model {d_model} / "
                f"n_heads {n_heads}), but it turns pairs of dimensions; allowed: an even head_dim"
            )
        self.two_sided = self.positions == "alibi" and not self.causal
        if self.two_sided and (self.n_heads < 2 or not self.two_sided_alibi):
            raise ValueError(
                f"positions: found alibi for a bidirectional {type(self).__name__} with n_heads "
                f"{n_heads}; allowed: alibi for rule-based variants with n_heads of at least 2 "
                "(half of them look back, half ahead), or another encoding"
            )
        self.W_q = nn.Linear(d_model, d_model, bias=False)
        self.W_k = nn.Linear(d_model, self.kv_heads * self.head_dim, bias=False)
        self.W_v = nn.Linear(d_model, self.kv_heads * self.head_dim, bias=False)
        self.W_o = nn.Linear(d_model, d_model, bias=False)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the heads' outputs (B, H, L, D) from q, k, v (B, H, L, D).

        q and k come with their positions applied, and may be wider than v. A query that may see
        no key outputs 0.
        """
        raise NotImplementedError

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return y (B, L, d_model) from x (B, L, d_model): project, attend, merge the heads."""
        padded = padding(lengths, x.shape[1])
        if padded is not None:  # not even a NaN in the padding gets through
            x = x.masked_fill(padded, 0)
        out_BHLD = self.attend(*self.project(x), lengths)
        out = self.W_o(out_BHLD.transpose(1, 2).flatten(2))
        out = nn.functional.dropout(out, self.dropout, self.training)
        return out if padded is None else out.masked_fill(padded, 0)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return q, k, v as (B, H, L, D), positions applied, shared heads repeated."""
        q, k, v = self.project_heads(x)
        if self.kv_heads < self.n_heads:
            shared = self.n_heads // self.kv_heads
            k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
        return q, k, v

    def project_heads(
        self, x: Tensor, start: int = 0, horizon: int | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return q (B, H, L, D) and k, v (B, G, L, D), positions applied, no head repeated.

        x holds the positions from ``start`` on of a sequence of ``horizon`` (default: all of it).
        """
        q, k, v = (
            W(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for W in (self.W_q, self.W_k, self.W_v)
        )
        if self.positions == "rotary":
            q, k = rotate(q, start, horizon), rotate(k, start, horizon)
        if self.positions == "alibi":
            q, k = add_alibi(q, k, self.slopes(), self.scale, start, horizon)
        return q, k, v

    def cache(self, horizon: int, batch: int = 1) -> Cache | None:
        """Return an empty cache for sequences of up to ``horizon`` tokens.

        It keeps the keys and values that a later query can still see, exactly.
        """
        if not (self.causal and self.is_softmax):
            return None
        _, k, v = self.project_heads(self.W_q.weight.new_zeros(batch, 1, self.d_model))
        return KeyValueCache(self.rule, horizon, k.detach(), v.detach())

    def prefill(self, x: Tensor, cache: Any) -> None:
        """Read x (B, L, d_model) into an empty cache, all positions at once, without outputs."""
        _, k, v = self.project_heads(x, cache.length, cache.horizon)
        cache.append(k, v)

    def decode(self, x: Tensor, cache: Any) -> Tensor:
        """Return the next position's output (B, 1, d_model) from its input (B, 1, d_model)."""
        check_next(x, cache)
        q, k, v = self.project_heads(x, cache.length, cache.horizon)
        cache.append(k, v)
        return self.W_o(cache.attend(q, self.scale).transpose(1, 2).flatten(2))

    def slopes(self) -> Tensor:
        """Return the (H,) ALiBi slopes; negative for heads that look ahead."""
        if not self.two_sided:
            return alibi_slopes(self.n_heads)
        back = self.n_heads // 2
        return torch.cat((alibi_slopes(back), -alibi_slopes(self.n_heads - back)))

    @property
    def rule(self) -> Any:
        """Return who sees whom before causality, as ``sees(q, k)``; None is everyone."""
        return None

    def groups(self) -> list[tuple[slice, Any, bool]]:
        """Return (heads, rule, causal): all heads in one, or two for bidirectional ALiBi."""
        if not self.two_sided:
            return [(slice(None), self.rule, self.causal)]
        back, rule = self.n_heads // 2, self.rule

        def ahead(q: Any, k: Any) -> Any:
            return k >= q if rule is None else (k >= q) & rule(q, k)

        return [(slice(0, back), rule, True), (slice(back, None), ahead, False)]

    def mask(self, length: int) -> Tensor:
        """Return who sees whom as bool (1 or H, L, L), row = query."""
        masks = [dense_mask(rule, length, causal) for _, rule, causal in self.groups()]
        if len(masks) == 1:
            return masks[0][None]
        counts = [len(range(self.n_heads)[heads]) for heads, _, _ in self.groups()]
        return torch.stack([m for m, n in zip(masks, counts, strict=True) for _ in range(n)])

    def weights(self, q: Tensor, k: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return the softmax over the keys each query sees, (B, H, L, L); 0 where it sees none."""
        dtype = torch.promote_types(q.dtype, torch.float32)  # half precision: as fused kernels do
        scores = q.to(dtype) @ k.to(dtype).transpose(-2, -1) * self.scale
        seen = self.mask(q.shape[2]).to(q.device)
        padded = padding(lengths, q.shape[2])
        if padded is not None:
            seen = seen & ~padded[:, None, None, :, 0] & ~padded[:, None]
        # The lowest number, not -inf: a row that sees nothing would turn to NaN.
        weights = scores.masked_fill(~seen, torch.finfo(dtype).min).softmax(-1)
        return weights.masked_fill(~seen, 0).to(q.dtype)

    def attention_weights(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return what each head looks at, (B, H, L, L), recomputed for pictures of short inputs."""
        padded = padding(lengths, x.shape[1])
        q, k, _ = self.project(x if padded is None else x.masked_fill(padded, 0))
        return self.weights(q, k, lengths)

    def keys_per_query(self, length: int) -> float | None:
        """Return the mean number of keys that a query sees, itself included."""
        counts = [keys_per_query(rule, length, causal) for _, rule, causal in self.groups()]
        shares = [len(range(self.n_heads)[heads]) / self.n_heads for heads, _, _ in self.groups()]
        return sum(c * s for c, s in zip(counts, shares, strict=True))

    def attend_flops(self, length: int, batch: int = 1) -> float | None:
        """Return the operations of ``attend``: scores and weighted sums of the pairs seen."""
        seen = self.keys_per_query(length)
        return None if seen is None else 4 * batch * length * seen * self.d_model

    def flops(self, length: int, batch: int = 1) -> float | None:
        """Return the operations of a forward pass: the four projections and ``attend``."""
        inside = self.attend_flops(length, batch)
        widths = 2 * self.d_model + 2 * self.kv_heads * self.head_dim
        return None if inside is None else inside + 2 * batch * length * self.d_model * widths

    def visibility(self, length: int) -> Tensor | None:
        """Return who sees whom in any head, bool (L, L), row = query."""
        return self.mask(length).any(0)


class RuleAttention(AttentionVariant):
    """Softmax attention over the keys that ``sees`` allows; cost follows the rule.

    Causality and padding are applied here: ``sees`` states only the variant's own restriction.
    """

    two_sided_alibi = True

    def sees(self, q: Any, k: Any) -> Any:
        """Return whether the query at position q may see the key at k.

        Plain arithmetic (+ - * // % abs, comparisons, & | ~): q and k are integer tensors, or
        intervals of positions (``spanwise.attention``).
        """
        raise NotImplementedError

    @property
    def rule(self) -> Any:
        """Return ``sees``."""
        return self.sees

    def attend(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None) -> Tensor:
        """Return softmax attention (B, H, L, D), computed where the rule allows."""
        wide = pad_like(v, k)
        outs = [
            rule_attention(
                q[:, heads],
                k[:, heads],
                wide[:, heads],
                rule,
                causal=causal,
                lengths=lengths,
                scale=self.scale,
            )
            for heads, rule, causal in self.groups()
        ]
        out = outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)
        return out[..., : v.shape[-1]]


def padding(lengths: Tensor | None, length: int) -> Tensor | None:
    """Return bool (B, L, 1), True at positions past each sequence's length; None if no lengths."""
    if lengths is None:
        return None
    return (torch.arange(length, device=lengths.device) >= lengths[:, None])[..., None]
