"""Other people's implementations as variants: any function or module, named by its dotted path.

- ``Function``: ``f(q, k, v) -> out``, all (B, H, L, D), between the usual projections.
- ``Module``: ``x -> y``, both (B, L, d_model), with weights of its own.

A class among targets is built once, with ``keywords``; a function gets them in every call.
``given`` hands it what the model decides: names of d_model, n_heads, head_dim, causal, scale, or
``{its keyword: ours}`` where it calls them otherwise.

The target is not believed: who sees whom, and so ``keys_per_query``, is found by disturbing its
inputs (``spanwise.influence``), unless a subclass states a rule, which the checks then disturb.
A short run before any cell starts refuses what is not as its config says (rehearsal.py). Padding
is never shown to it: a target that looks ahead gets each sequence cut to its length. One that
writes to its inputs gets copies (wrapper.py). How it is found, built and judged is in target.py.

Shape suffixes: B batch, L sequence length, H heads, D head_dim.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from spanwise import influence
from spanwise.positions import ON_EMBEDDINGS
from variants.interface import AttentionVariant, padding
from variants.wrapper import THRESHOLD, External, measured, named, normal, unpadded


class Function(External, AttentionVariant):
    """Attention by somebody's ``f(q, k, v)``, between this variant's own projections.

    target: dotted path of a function, or of a class whose instances are called. keywords: its
    further arguments. given: see above. direction: "causal" or "bidirectional" where it is not
    given causal.
    """

    label = "Function"
    colour = "#44AA99"
    paper = "the target's own"
    inputs = ("q", "k", "v")
    positions_allowed = (*ON_EMBEDDINGS, "rotary")
    """ALiBi would widen q and k, and with them the scale that a function takes by itself."""
    is_softmax = False

    def __init__(
        self,
        target: str,
        keywords: dict[str, Any] | None = None,
        given: list[Any] | dict[str, str] | None = None,
        direction: str | None = None,
        **attention: Any,
    ):
        super().__init__(**attention)
        self._name_target(target, keywords, given, direction)
        if attention.get("scale") is not None and "scale" not in named(given).values():
            raise ValueError(
                f"scale: found {self.scale}, but {target} is not given it; allowed: null, or a "
                "keyword in given that takes scale"
            )
        self.function = self._make()

    def attend(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the function's outputs (B, H, L, D), each sequence seen up to its length."""
        return unpadded(self._call, (q, k, v), lengths, self.causal)

    def _call(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self._ask(self.function, q, k, v)

    def weights(self, q: Tensor, k: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return each key's share in each output, (B, H, L, L).

        What the function makes of unit vectors as values: it must be linear in them.
        """
        if self.rule is not None:
            return super().weights(q, k, lengths)
        batch, heads, length, width = q.shape
        units = torch.eye(length, dtype=q.dtype, device=q.device)
        units = nn.functional.pad(units, (0, -length % width))
        shares = torch.cat(
            [
                self.attend(q, k, part.expand(batch, heads, length, width), lengths)
                for part in units.split(width, dim=1)
            ],
            dim=-1,
        )[..., :length]
        padded = padding(lengths, length)
        return shares if padded is None else shares.masked_fill(padded[:, None], 0)

    def mask(self, length: int) -> Tensor:
        """Return who sees whom as bool (1, L, L), row = query: measured where no rule says it."""
        if self.rule is not None:
            return super().mask(length)
        return influence.sight(*self._probe(length), THRESHOLD)[None]

    def keys_per_query(self, length: int) -> float | None:
        """Return the mean number of keys that a query sees, measured where no rule says it."""
        if self.rule is not None:
            return super().keys_per_query(length)
        return measured(self, length)

    def visibility(self, length: int) -> Tensor | None:
        """Return who sees whom, bool (L, L); None for lengths too great to measure it whole."""
        if self.rule is not None or length <= influence.EXACT_LENGTH:
            return self.mask(length).any(0)
        return None

    def _probe(self, length: int) -> tuple[Callable[..., Tensor], list[Tensor], list[Tensor]]:
        """Return what to run, and two sets of keys and values: queries stay as they are."""
        (q, *given), (_, *other) = self._drawn(length, 0), self._drawn(length, 1)
        run = self._steady()
        return lambda k, v: run(q.expand(len(k), -1, -1, -1), k, v), given, other

    def _drawn(self, length: int, number: int) -> tuple[Tensor, ...]:
        shape = (1, self.n_heads, length, self.head_dim)
        return tuple(normal(3 * number + i, shape) for i in range(3))


class Module(External):
    """Somebody's module or callable ``x -> y`` on (B, L, d_model), with weights of its own.

    target: dotted path of a class, built with ``keywords`` and what is ``given`` (not scale), or
    of a function of x. The first of several results is y. direction: "causal" or "bidirectional"
    where it is not given causal. Where a position's own input reaches its output, it counts as
    seen.
    """

    label = "Module"
    colour = "#DDCC77"
    paper = "the target's own"
    inputs = ("x",)
    decisions = ("d_model", "n_heads", "head_dim", "causal")

    def __init__(
        self,
        target: str,
        keywords: dict[str, Any] | None = None,
        given: list[Any] | dict[str, str] | None = None,
        direction: str | None = None,
        **model: Any,
    ):
        super().__init__(**model)
        for name, value, allowed in (
            ("scale", self.scale, None),
            ("kv_heads", self.kv_heads, self.n_heads),
        ):
            if value != allowed:
                raise ValueError(
                    f"{name}: found {value}, but {target} decides it; "
                    f"allowed: {'null' if allowed is None else allowed}"
                )
        if "head_dim" in named(given).values() and self.d_model % self.n_heads:
            raise ValueError(
                f"n_heads: found {self.n_heads}; allowed: a divisor of d_model {self.d_model}"
            )
        self.head_dim = self.d_model // self.n_heads
        self._name_target(target, keywords, given, direction)
        self.module = self._make()

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return y (B, L, d_model) from x (B, L, d_model), each sequence up to its length."""
        padded = padding(lengths, x.shape[1])
        if padded is not None:
            x = x.masked_fill(padded, 0)
        y = unpadded(self.mix, (x,), lengths, self.causal)
        y = nn.functional.dropout(y, self.dropout, self.training)
        return y if padded is None else y.masked_fill(padded, 0)

    def mix(self, x: Tensor) -> Tensor:
        """Return y (B, L, d_model) from sequences x without padding."""
        return self._ask(self.module, x)

    def keys_per_query(self, length: int) -> float | None:
        """Return the mean number of keys that a query's output depends on, measured."""
        return measured(self, length)

    def visibility(self, length: int) -> Tensor | None:
        """Return who sees whom, bool (L, L); None for lengths too great to measure it whole."""
        if length > influence.EXACT_LENGTH:
            return None
        return influence.sight(*self._probe(length), THRESHOLD)

    def _probe(self, length: int) -> tuple[Callable[..., Tensor], list[Tensor], list[Tensor]]:
        return self._steady(), [*self._drawn(length, 0)], [*self._drawn(length, 1)]

    def _drawn(self, length: int, number: int) -> tuple[Tensor, ...]:
        return (normal(number, (1, length, self.d_model)),)
