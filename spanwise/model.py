"""The transformer around a variant: everything that is not compared, equal for all.

Pre-norm residual blocks, each: norm, short convolution (optional), the variant, then norm and
multilayer perceptron (optional). Which sequence mixer stands in a block is the variant's business:
``variant`` is a factory, called once a layer with the keywords that the model decides.

Shape suffixes: B batch, L sequence length, N positions asked for, M d_model.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spanwise.errors import ConfigError
from spanwise.positions import NAMES, sinusoidal
from spanwise.seeds import derive_seed, torch_generator
from variants.interface import Variant, one_of, padding, positive, whole
from variants.stack import stack_of


class Model(nn.Module):
    """Tokens in, logits out.

    variant: factory of the sequence mixer, a ``Variant`` class with its own parameters bound, or
    one of a ``Stack``. length: the longest sequence (it sizes the table of learned positions).
    mlp_ratio: hidden width of the perceptron over d_model; 0 leaves it out. conv: width of a
    depthwise convolution, with a residual, before the variant in each block; 0 leaves it out.
    tied: the output projection is the embedding table. A bad value raises ConfigError.
    """

    def __init__(
        self,
        variant: Any,
        *,
        vocab_size: int,
        n_classes: int,
        length: int,
        causal: bool,
        seed: int = 0,
        d_model: int = 64,
        n_heads: int = 4,
        n_layers: int = 2,
        mlp_ratio: float = 4,
        positions: str = "none",
        conv: int = 0,
        dropout: float = 0.0,
        scale: float | None = None,
        tied: bool = False,
        kv_heads: int | None = None,
    ):
        super().__init__()
        try:
            whole("model.n_layers", n_layers)
            whole("model.conv", conv, least=0)
            one_of("model.positions", positions, NAMES)
            if mlp_ratio:
                positive("model.mlp_ratio", mlp_ratio)
            stack = stack_of(variant)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if stack.period > n_layers:
            raise ConfigError(
                f"model.n_layers: found {n_layers}, fewer than the {stack.period} layers of the "
                f"variant's pattern; allowed: at least {stack.period}"
            )
        if tied and n_classes != vocab_size:
            raise ConfigError(
                f"model.tied: a tied head needs as many classes as tokens, found {n_classes} "
                f"classes and {vocab_size} tokens; allowed: false"
            )
        keywords: dict[str, Any] = {
            "d_model": d_model,
            "n_heads": n_heads,
            "causal": causal,
            "positions": positions,
            "dropout": dropout,
            "scale": scale,
        }
        if kv_heads is not None:
            keywords["kv_heads"] = kv_heads
        self.length, self.positions, self.period = length, positions, stack.period
        with torch.random.fork_rng(devices=[]):  # torch's modules draw from the global generator
            self.embedding = nn.Embedding(vocab_size, d_model)
            self.table = nn.Embedding(length, d_model) if positions == "learned" else None
            self.dropout = nn.Dropout(dropout)
            self.blocks = nn.ModuleList(
                Block(
                    build_layer(stack, i, seed=seed, **keywords),
                    d_model=d_model,
                    mlp_ratio=mlp_ratio,
                    conv=conv,
                    causal=causal,
                    dropout=dropout,
                )
                for i in range(n_layers)
            )
            self.norm = nn.LayerNorm(d_model)
            self.head = None if tied else nn.Linear(d_model, n_classes, bias=False)
        initialise(self, seed)

    def forward(
        self, tokens_BL: Tensor, lengths: Tensor | None = None, at: Tensor | None = None
    ) -> Tensor:
        """Return logits (N, n_classes) at the True positions of ``at``, in row-major order.

        lengths (B,) int64: valid length of each sequence, all where None; tokens past it change
        nothing. at (B, L) bool; where None, logits (B, L, n_classes) at every position.
        """
        x_BLM = self.hidden(tokens_BL, lengths)
        if at is not None:
            x_BLM = x_BLM[at]
        x_BLM = self.norm(x_BLM)
        return F.linear(x_BLM, self.embedding.weight) if self.head is None else self.head(x_BLM)

    def hidden(self, tokens_BL: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return what the last block leaves at each position, (B, L, d_model)."""
        length = tokens_BL.shape[1]
        x_BLM = self.embedding(tokens_BL)
        if self.table is not None:
            if length > self.length:
                raise ConfigError(
                    f"model.positions: learned positions end at {self.length}, found a sequence "
                    f"of {length}; allowed: {', '.join(n for n in NAMES if n != 'learned')}"
                )
            x_BLM = x_BLM + self.table.weight[:length]
        elif self.positions == "sinusoidal":
            # Vaswani et al. enlarge the embeddings by sqrt(d_model) instead: the same mixture.
            d_model = x_BLM.shape[-1]
            table_LM = sinusoidal(length, d_model, x_BLM.dtype, x_BLM.device)
            x_BLM = x_BLM + table_LM * d_model**-0.5
        x_BLM = self.dropout(x_BLM)
        for block in self.blocks:
            x_BLM = block(x_BLM, lengths)
        return x_BLM

    @property
    def layers(self) -> list[Variant]:
        """Return the variants of the blocks, first to last."""
        return [block.mixer for block in self.blocks]  # type: ignore[misc]

    def keys_per_query(self, length: int) -> float | None:
        """Return the mean over the layers of the keys a query sees; None where one has none."""
        counts = [layer.keys_per_query(length) for layer in self.layers]
        known = [count for count in counts if count is not None]
        return sum(known) / len(known) if len(known) == len(counts) else None

    def visibility(self, length: int) -> list[Tensor | None]:
        """Return who sees whom, bool (L, L), for each layer of the pattern."""
        return [layer.visibility(length) for layer in self.layers[: self.period]]


class Block(nn.Module):
    """x + mixer(conv(norm(x))), then x + mlp(norm(x))."""

    def __init__(
        self,
        mixer: Variant,
        *,
        d_model: int,
        mlp_ratio: float,
        conv: int,
        causal: bool,
        dropout: float,
    ):
        super().__init__()
        self.norm_mixer = nn.LayerNorm(d_model)
        self.conv = ShortConvolution(d_model, conv, causal) if conv else None
        self.mixer = mixer
        self.norm_mlp = self.mlp = None
        if mlp_ratio:
            hidden = max(1, round(mlp_ratio * d_model))
            self.norm_mlp = nn.LayerNorm(d_model)
            self.mlp = nn.Sequential(
                nn.Linear(d_model, hidden),
                nn.GELU(),
                nn.Linear(hidden, d_model),
                nn.Dropout(dropout),
            )

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return (B, L, d_model) from (B, L, d_model)."""
        mixed = self.norm_mixer(x)
        if self.conv is not None:
            mixed = mixed + self.conv(mixed, lengths)
        x = x + self.mixer(mixed, lengths)
        if self.mlp is not None and self.norm_mlp is not None:
            x = x + self.mlp(self.norm_mlp(x))
        return x


class ShortConvolution(nn.Module):
    """A depthwise convolution over ``width`` positions, as the recall literature uses.

    Causal: the positions that end at each one. Bidirectional: (width-1)//2 before and width//2
    after, as a window of attention is counted (Arora et al. 2023, Zoology, arXiv:2312.04927).
    """

    def __init__(self, d_model: int, width: int, causal: bool):
        super().__init__()
        self.before = width - 1 if causal else (width - 1) // 2
        self.after = width - 1 - self.before
        self.weight = nn.Parameter(torch.empty(width, d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def reset_parameters(self) -> None:
        """Draw the weights as ``nn.Conv1d`` does: uniform within 1/sqrt(width)."""
        bound = self.weight.shape[0] ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return (B, L, d_model) from (B, L, d_model)."""
        padded = padding(lengths, x.shape[1])
        if padded is not None:
            x = x.masked_fill(padded, 0)
        # Shifted products: for a width of 3, far faster on a CPU than a depthwise nn.Conv1d.
        wide = F.pad(x, (0, 0, self.before, self.after))
        out = self.bias
        for i, weight in enumerate(self.weight):
            out = out + wide[:, i : i + x.shape[1]] * weight
        return out


def build_layer(variant: Any, index: int = 0, *, seed: int = 0, **keywords: Any) -> Variant:
    """Return layer ``index`` of a variant's factory, alone, with weights drawn from ``seed``.

    keywords: what the model gives to a variant (``d_model``, ``n_heads``, ``causal``,
    ``positions``, ``dropout``, ``scale``).
    """
    stack = stack_of(variant)
    with torch.random.fork_rng(devices=[]):
        # For parameters that a third party's variant draws in its own constructor.
        torch.manual_seed(derive_seed(seed, "build", index))
        layer = stack.layer(index)(**keywords)
    if not isinstance(layer, Variant):
        raise ConfigError(f"variant: found {type(layer).__name__}; allowed: a subclass of Variant")
    initialise(layer, seed, prefix=f"blocks.{index}.mixer")
    return layer


def initialise(module: nn.Module, seed: int, prefix: str = "") -> None:
    """Draw each parameter from a stream of its own, named after it.

    So two models at one seed start equal wherever names and shapes are equal, whatever else they
    hold. Matrices are normal with variance 1/inputs, embeddings with variance 1/d_model, biases are
    0; a module of another kind draws its
    parameters by its own ``reset_parameters``.
    """
    for name, part in module.named_modules():
        path = ".".join(filter(None, (prefix, name)))
        if isinstance(part, nn.Linear):
            std = part.in_features**-0.5
            part.weight.data.normal_(0, std, generator=torch_generator(seed, "init", path))
            if part.bias is not None:
                part.bias.data.zero_()
        elif isinstance(part, nn.Embedding):
            std = part.embedding_dim**-0.5
            part.weight.data.normal_(0, std, generator=torch_generator(seed, "init", path))
        elif callable(getattr(part, "reset_parameters", None)):
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(derive_seed(seed, "init", path))
                part.reset_parameters()


def n_params(model: nn.Module) -> int:
    """Return the number of trained numbers, a shared one counted once."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


def display(variant: Any) -> dict[str, Any]:
    """Return label, colour and paper of a factory's variant or stack, for tables and figures."""
    made = getattr(variant, "func", variant)
    return {name: getattr(made, name, "") for name in ("label", "colour", "paper")}
