"""What the GRU and the LSTM share: one state carried from position to position.

Shape suffixes: B batch, L sequence length, S state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from variants.decoding import StateCache, check_next
from variants.interface import Variant, padding, whole


class Recurrent(Variant):
    """A recurrent layer of torch's own, then a projection W_o from its state to d_model.

    ``state`` is the width of the state; None makes the layer as large as attention's four
    projections at this d_model (4 d_model^2 parameters, to the nearest whole width), so that a
    comparison is between equals. A bidirectional layer reads the sequence both ways, with a state
    for each, each this wide. ``n_heads`` and ``scale`` mean nothing here.
    """

    cell: ClassVar[Callable[..., nn.RNNBase]]

    def __init__(self, state: int | None = None, **keywords: Any):
        super().__init__(**keywords)
        self.state = self._fair_state() if state is None else whole("state", state)
        self.recurrence = self._recurrence(self.state)
        self.W_o = nn.Linear(self.state * self.directions, self.d_model, bias=False)

    @property
    def directions(self) -> int:
        """1 where the layer only looks back, 2 where it reads both ways."""
        return 1 if self.causal else 2

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return y (B, L, d_model) from x (B, L, d_model)."""
        padded = padding(lengths, x.shape[1])
        if padded is not None:
            x = x.masked_fill(padded, 0)
        if lengths is None or self.causal:  # what comes later cannot matter
            states_BLS, _ = self.recurrence(x)
        else:
            # The backward pass starts at each sequence's own end; torch refuses empty ones.
            ends = lengths.clamp(1, x.shape[1]).cpu()
            packed = nn.utils.rnn.pack_padded_sequence(
                x, ends, batch_first=True, enforce_sorted=False
            )
            states_BLS, _ = nn.utils.rnn.pad_packed_sequence(
                self.recurrence(packed)[0], batch_first=True, total_length=x.shape[1]
            )
        out = nn.functional.dropout(self.W_o(states_BLS), self.dropout, self.training)
        return out if padded is None else out.masked_fill(padded, 0)

    def cache(self, horizon: int, batch: int = 1) -> StateCache | None:
        """Return an empty state, of one size whatever the length; None where it reads both ways."""
        if not self.causal:
            return None
        zero = self.W_o.weight.new_zeros(1, batch, self.state)
        return StateCache((zero, zero.clone()) if self.cell is nn.LSTM else zero, horizon)

    def prefill(self, x: Tensor, cache: StateCache) -> None:
        """Read x (B, L, d_model) into the state."""
        _, cache.state = self.recurrence(x, cache.state)
        cache.length += x.shape[1]

    def decode(self, x: Tensor, cache: StateCache) -> Tensor:
        """Return the next position's output (B, 1, d_model) from its input (B, 1, d_model)."""
        check_next(x, cache)
        states_BLS, cache.state = self.recurrence(x, cache.state)
        cache.length += 1
        return self.W_o(states_BLS)

    def step(self, x: Tensor) -> Tensor:
        """Return what each position gets from the one before it: one step of the recurrence."""
        if not self.causal:
            raise ValueError("causal: found False; allowed: True, to follow one direction's steps")
        before = nn.functional.pad(x, (0, 0, 1, 0))[:, :-1]
        pairs = torch.stack((before, x), dim=2).flatten(0, 1)
        return self.W_o(self.recurrence(pairs)[0][:, -1]).unflatten(0, x.shape[:2])

    def flops(self, length: int, batch: int = 1) -> float:
        """Return the operations of a forward pass: every matrix, once a position."""
        weights = sum(p.numel() for p in self.parameters() if p.dim() == 2)
        return 2.0 * batch * length * weights

    def _recurrence(self, state: int) -> nn.RNNBase:
        return self.cell(
            self.d_model,
            state,
            batch_first=True,
            bidirectional=not self.causal,
        )

    def _fair_state(self) -> int:
        def parameters(state: int) -> int:
            with torch.device("meta"):
                inside = sum(p.numel() for p in self._recurrence(state).parameters())
            return inside + state * self.directions * self.d_model

        return min(
            range(1, self.d_model + 1), key=lambda s: abs(parameters(s) - 4 * self.d_model**2)
        )
