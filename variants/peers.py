"""Known implementations of local attention, to be compared with: what each computes, exactly.

A "window" differs between them, so each keeps its own word for it; ``keys_per_query`` tells.
Packages beyond torch are installed by ``pip install 'spanwise[peers]'``, and imported when such a
variant is built.

Shape suffixes: B batch, L sequence length, H heads, D head_dim.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from spanwise.attention import dense_mask, keys_per_query
from spanwise.positions import pad_like
from variants.external import Function, Module
from variants.interface import whole
from variants.target import load
from variants.windowed import Windowed
from variants.wrapper import unpadded


class LocalAttention(Function):
    """lucidrains' local-attention with ``exact_windowsize``, causal, without its own positions.

    The sequence is cut into windows of ``window_size``, and each window's scores with itself and
    the ``look_backward`` windows before it are formed. A query keeps itself and the
    ``window_size * look_backward`` keys before it: one more than that product.
    """

    label = "local-attention"
    colour = "#88CCEE"
    paper = "github.com/lucidrains/local-attention"
    is_softmax = True
    check_parameters = {"window_size": 4}  # noqa: RUF012

    def __init__(self, window_size: int, look_backward: int = 1, **attention: Any):
        super().__init__(
            target="local_attention.LocalAttention",
            keywords={
                "window_size": whole("window_size", window_size),
                "look_backward": whole("look_backward", look_backward),
                "causal": True,
                "exact_windowsize": True,
                "autopad": True,  # with keys after all others, which causality hides
                "use_rotary_pos_emb": False,
            },
            given={"scale": "scale"},
            direction="causal",
            **attention,
        )
        self.window_size, self.look_backward = window_size, look_backward

    def sees(self, q: Any, k: Any) -> Any:
        """Return whether k is among the keys that a query keeps."""
        return q - k <= self.window_size * self.look_backward

    @property
    def rule(self) -> Any:
        """Return ``sees``."""
        return self.sees


class Longformer(Module):
    """Hugging Face's LongformerSelfAttention without global tokens, then a projection W_o.

    A query sees ``attention_window``/2 keys before it, itself, and as many after: an odd number.
    Sequences are padded to a multiple of ``attention_window``, as its own model does.
    """

    label = "Longformer (Hugging Face)"
    colour = "#661100"
    paper = "Beltagy et al. 2020 (Longformer), arXiv:2004.05150"
    check_parameters = {"attention_window": 4}  # noqa: RUF012
    expected_failures = {  # noqa: RUF012
        "check_gradients": "its softmax is taken in float32 whatever the input's type, and central "
        "differences see the rounding",
    }

    def __init__(self, attention_window: int, **model: Any):
        if whole("attention_window", attention_window, least=2) % 2:
            raise ValueError(
                f"attention_window: found {attention_window}; allowed: an even number of at least 2"
            )
        self.attention_window = attention_window
        super().__init__(
            target="transformers.models.longformer.modeling_longformer.LongformerSelfAttention",
            direction="bidirectional",
            **model,
        )
        if self.d_model % self.n_heads:
            raise ValueError(
                f"n_heads: found {self.n_heads}; allowed: a divisor of d_model {self.d_model}"
            )
        self.W_o = nn.Linear(self.d_model, self.d_model, bias=False)

    def _make(self) -> nn.Module:
        config = load("transformers.LongformerConfig")(
            hidden_size=self.d_model,
            num_attention_heads=self.n_heads,
            attention_window=[self.attention_window],
            num_hidden_layers=1,
            attention_probs_dropout_prob=0.0,
        )
        made = load(self.target)(config, layer_id=0)
        # Of global tokens alone: without any they would be weights that nothing trains.
        del made.query_global, made.key_global, made.value_global
        return made

    def rehearse(self, length: int, dtype: torch.dtype) -> None:
        """Do nothing: its module, known, is not called with x alone."""

    def mix(self, x: Tensor) -> Tensor:
        """Return y (B, L, d_model) from sequences x without padding."""
        batch, length, _ = x.shape
        x = nn.functional.pad(x, (0, 0, 0, -length % self.attention_window))
        outside = torch.arange(x.shape[1], device=x.device).expand(batch, -1) >= length
        y = self.module(
            x,
            attention_mask=outside.to(x.dtype) * -10000,  # its model's own code for "no token"
            is_index_masked=outside,
            is_index_global_attn=torch.zeros_like(outside),
            is_global_attn=False,
        )[0]
        return self.W_o(y[:, :length])

    def sees(self, q: Any, k: Any) -> Any:
        """Return whether k is within half an ``attention_window`` of q."""
        return abs(q - k) <= self.attention_window // 2

    def keys_per_query(self, length: int) -> float:
        """Return the mean number of keys that a query sees, itself included."""
        return keys_per_query(self.sees, length, causal=False)

    def visibility(self, length: int) -> Tensor:
        """Return who sees whom, bool (L, L), row = query."""
        return dense_mask(self.sees, length, causal=False)

    def attend_flops(self, length: int, batch: int = 1) -> float:
        """Return the operations on the pairs seen: scores and weighted sums."""
        return 4 * batch * length * self.keys_per_query(length) * self.d_model

    def flops(self, length: int, batch: int = 1) -> float:
        """Return the operations of a forward pass: the four projections and the pairs seen."""
        return self.attend_flops(length, batch) + 8 * batch * length * self.d_model**2


class _Masked(Windowed):
    """A window by one of torch's own kernels, given who sees whom in the form that it takes."""

    two_sided_alibi = False

    def attend(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the outputs (B, H, L, D)."""
        out = unpadded(self.run, (q, k, pad_like(v, k)), lengths, self.causal)
        return out[..., : v.shape[-1]]

    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the outputs (B, H, L, D) of sequences without padding."""
        raise NotImplementedError

    def cache(self, horizon: int, batch: int = 1) -> None:
        """Return None: the kernel has no memory to generate from."""
        return


class DenseMask(_Masked):
    """torch's scaled_dot_product_attention with the window as a bool mask of L x L, kept."""

    label = "SDPA, dense mask"
    colour = "#8C510A"
    paper = "docs.pytorch.org, torch.nn.functional.scaled_dot_product_attention"
    expected_failures = {  # noqa: RUF012
        "check_cost_follows_the_rule": "all L x L scores are computed before the mask hides them",
    }

    def __init__(self, window: int, **attention: Any):
        super().__init__(window, **attention)
        self._seen: dict[tuple[int, torch.device], Tensor] = {}

    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the outputs (B, H, L, D) of sequences without padding."""
        key = (q.shape[2], q.device)
        if key not in self._seen:
            self._seen = {key: dense_mask(self.rule, q.shape[2], self.causal, q.device)}
        return scaled_dot_product_attention(q, k, v, attn_mask=self._seen[key], scale=self.scale)


class FlexAttention(_Masked):
    """torch's flex_attention with the window as a mask function and its own block mask, kept.

    Compiled from ``compiled_from`` tokens on (some 5 s for each length), in the types that its CPU
    kernel has. It has no backward pass on the CPU.
    """

    label = "flex_attention"
    colour = "#6699CC"
    paper = "Dong et al. 2024 (FlexAttention), arXiv:2412.05496"
    trains_on_cpu = False
    expected_failures = {  # noqa: RUF012
        **dict.fromkeys(
            (
                "check_gradients",
                "check_equals_oracle",
                "check_blind_queries",
                "check_large_scores",
                "check_padding_gets_no_gradient",
            ),
            "the check wants gradients, and there is no backward pass on the CPU",
        ),
        "check_cost_follows_the_rule": "products inside a compiled kernel cannot be counted",
    }

    def __init__(self, window: int, compiled_from: int = 128, **attention: Any):
        super().__init__(window, **attention)
        self.compiled_from = whole("compiled_from", compiled_from)
        self._blocks: dict[tuple[int, torch.device], Any] = {}

    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the outputs (B, H, L, D) of sequences without padding."""
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        length, device = q.shape[2], q.device
        if not torch.is_grad_enabled():  # it looks at the tensors, not at what will be done
            q, k, v = q.detach(), k.detach(), v.detach()
        if (length, device) not in self._blocks:

            def seen(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
                return self.sees(q, k) & (k <= q) if self.causal else self.sees(q, k)

            made = create_block_mask(seen, None, None, length, length, device=str(device))
            self._blocks = {(length, device): made}
        compiled = length >= self.compiled_from and q.dtype != torch.float64
        with warnings.catch_warnings():
            # Of torch's own parts when it compiles, and of short sequences that are not compiled.
            warnings.simplefilter("ignore", DeprecationWarning)
            warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
            kernel: Any = _compiled() if compiled else flex_attention
            return kernel(q, k, v, block_mask=self._blocks[length, device], scale=self.scale)


@functools.cache
def _compiled() -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=False)
