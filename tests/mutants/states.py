"""Right the first time: randomness and memory where none should be."""

import torch
import torch.nn.functional as F

from spanwise.attention import lookup
from variants.full import Full
from variants.interface import RuleAttention, Variant, padding
from variants.windowed import Windowed


class DropoutInEvaluation(Windowed):
    """Dropout stays on in evaluation (pytorch #124464)."""

    def forward(self, x, lengths=None):
        return F.dropout(super().forward(x, lengths), self.dropout, True)


class NoDropout(Windowed):
    """Dropout is accepted and never applied."""

    def forward(self, x, lengths=None):
        was, self.dropout = self.dropout, 0.0
        out = super().forward(x, lengths)
        self.dropout = was
        return out


class NoisyTraining(Windowed):
    """Noise in training, without dropout being asked for."""

    def attend(self, q, k, v, lengths):
        return super().attend(q * (1.01 if self.training else 1), k, v, lengths)


class Redrawn(RuleAttention):
    """Random keys, drawn anew at each forward, evaluation included."""

    label, colour = "Random", "#000000"

    def attend(self, q, k, v, lengths):
        self.groups_of = torch.randint(0, 3, (q.shape[2],))
        return super().attend(q, k, v, lengths)

    def sees(self, q, k):
        return (q == k) | (lookup(self.groups_of, q) == lookup(self.groups_of, k))

    def visibility(self, length):
        return None

    def keys_per_query(self, length):
        return None


class HashedBlocks(RuleAttention):
    """Random keys by Python's hash of a string, which differs between processes."""

    label, colour = "Hashed", "#000000"

    def __init__(self, **attention):
        super().__init__(**attention)
        self.drawn = torch.tensor([hash(f"block {i}") % 3 for i in range(64)])

    def sees(self, q, k):
        return (q == k) | (lookup(self.drawn, q) == lookup(self.drawn, k))


class StateNotSaved(Windowed):
    """A random mixing of the values that is no parameter and no buffer."""

    def __init__(self, window, **attention):
        super().__init__(window, **attention)
        self.mixing = torch.rand(64)

    def attend(self, q, k, v, lengths):
        return super().attend(q, k, v, lengths) * self.mixing[0].item()


class StaleLengths(Windowed):
    """The padding mask of the first call with that shape is kept for all."""

    def __init__(self, window, **attention):
        super().__init__(window, **attention)
        self.kept = {}

    def forward(self, x, lengths=None):
        lengths = self.kept.setdefault(x.shape, lengths) if lengths is None else lengths
        self.kept[x.shape] = lengths
        return super().forward(x, lengths)


class GlobalSeed(Full):
    """Weights drawn from the global generator, at the first forward."""

    def forward(self, x, lengths=None):
        if not hasattr(self, "gain"):
            self.gain = torch.rand(()).item()
        return super().forward(x, lengths) * self.gain


class InferenceTensorKept(Full):
    """Evaluation without gradients takes a cheaper, different path."""

    def forward(self, x, lengths=None):
        out = super().forward(x, lengths)
        return out if torch.is_grad_enabled() else out.to(torch.bfloat16).to(x.dtype)


class BackwardRecurrence(Variant):
    """A recurrence that reads from the end: no attention, and the future leaks in."""

    label, colour = "Backward mean", "#000000"

    def forward(self, x, lengths=None):
        padded = padding(lengths, x.shape[1])
        x = x if padded is None else x.masked_fill(padded, 0)
        out = x.flip(1).cumsum(1).flip(1) / x.shape[1]
        return out if padded is None else out.masked_fill(padded, 0)


class Unnamed(Full):
    """No label for the tables."""

    label = ""
