"""Right rules, wrong arithmetic: the mask, the padding, the heads, the scores."""

import torch
import torch.nn.functional as F

from spanwise.attention import rule_attention
from spanwise.positions import rotate
from variants.chunked import Chunked
from variants.full import Full
from variants.interface import padding
from variants.windowed import Windowed


def scores_and_mask(layer, q, k, lengths):
    seen = layer.mask(q.shape[2])
    if lengths is not None:
        seen = seen & ~padding(lengths, q.shape[2])[:, None, None, :, 0]
    return q @ k.transpose(-2, -1) * layer.scale, seen


class Dense(Windowed):
    """A correct window by a dense mask: what the mutants below are made from; it costs L x L."""

    def fill(self, scores, seen):
        return scores.masked_fill(~seen, torch.finfo(scores.dtype).min)

    def attend(self, q, k, v, lengths):
        scores, seen = scores_and_mask(self, q, k, lengths)
        weights = self.fill(scores, seen).softmax(-1) * seen
        return weights.to(v.dtype) @ v


class FutureSeen(Windowed):
    """The causal mask is forgotten."""

    def attend(self, q, k, v, lengths):
        return rule_attention(q, k, v, None, False, lengths, self.scale)


class FutureInTheMean(Windowed):
    """Values are centred by their mean over the whole sequence."""

    def attend(self, q, k, v, lengths):
        return super().attend(q, k, v - v.mean(2, keepdim=True), lengths)


class WrapsAround(Windowed):
    """The first queries see the last keys: windows by a roll."""

    def attend(self, q, k, v, lengths):
        shifts = range(min(self.window, q.shape[2]))
        scores = torch.stack([(q * k.roll(s, 2)).sum(-1) * self.scale for s in shifts], -1)
        weights = scores.softmax(-1)
        return sum(weights[..., s : s + 1] * v.roll(s, 2) for s in shifts)


class StrideForChunks(Chunked):
    """Chunks by a reshape to (window, L / window): neighbours by stride, not by position."""

    def attend(self, q, k, v, lengths):
        def fold(x):
            more = -x.shape[2] % self.window
            return F.pad(x, (0, 0, 0, more)).unflatten(2, (self.window, -1)).transpose(2, 3)

        out = F.scaled_dot_product_attention(*(fold(x) for x in (q, k, v)), scale=self.scale)
        return out.transpose(2, 3).flatten(2, 3)[:, :, : q.shape[2]]


class LengthMustDivide(Windowed):
    """Refuses lengths that the window does not divide (local-attention, Longformer)."""

    def attend(self, q, k, v, lengths):
        if q.shape[2] % self.window:
            raise RuntimeError(f"length {q.shape[2]} must be divisible by window {self.window}")
        return super().attend(q, k, v, lengths)


class PaddedKeysSeen(Windowed):
    """Padded keys are attended, and counted in the normaliser."""

    def attend(self, q, k, v, lengths):
        return super().attend(q, k, v, None)


class PaddedContentSeen(Windowed):
    """Keys without a mask, and padded inputs left as they are."""

    def forward(self, x, lengths=None):
        out = self.W_o(super().attend(*self.project(x), None).transpose(1, 2).flatten(2))
        padded = padding(lengths, x.shape[1])
        return out if padded is None else out.masked_fill(padded, 0)


class PaddedOutputsLeft(Windowed):
    """Outputs at padded positions are what the last keys gave."""

    def forward(self, x, lengths=None):
        return super().forward(x, lengths) + 0.1 * x


class BlindRowsNan(Dense):
    """-inf as the mask: a row that sees nothing is NaN, and so is the next layer."""

    def fill(self, scores, seen):
        return scores.masked_fill(~seen, -torch.inf)


class BlindRowsMean(Dense):
    """A row that sees nothing gets the mean of all values."""

    def attend(self, q, k, v, lengths):
        scores, seen = scores_and_mask(self, q, k, lengths)
        return self.fill(scores, seen).softmax(-1) @ v


class SmallMaskNumber(Dense):
    """-1e4 as the mask: large scores get through."""

    def attend(self, q, k, v, lengths):
        scores, seen = scores_and_mask(self, q, k, lengths)
        return torch.where(seen, scores, scores - 1e4).softmax(-1) @ v


class HalfPrecisionOverflow(Dense):
    """Scores in float16, where 65,504 is the end."""

    def attend(self, q, k, v, lengths):
        scores, seen = scores_and_mask(self, q, k, lengths)
        half = (scores / self.scale).to(torch.float16).to(scores.dtype) * self.scale
        return (self.fill(half, seen).softmax(-1) * seen).to(v.dtype) @ v


class LowPrecisionInside(Windowed):
    """float32 is computed in bfloat16."""

    def attend(self, q, k, v, lengths):
        if q.dtype is not torch.float32:
            return super().attend(q, k, v, lengths)
        low = (x.to(torch.bfloat16) for x in (q, k, v))
        return super().attend(*low, lengths).float()


class AlwaysFloat32(Windowed):
    """The output is float32 whatever comes in."""

    def forward(self, x, lengths=None):
        return super().forward(x, lengths).float()


class CostUnchanged(Dense):
    """A window is given, the cost is that of full attention."""


class ScaleIgnored(Full):
    """1/sqrt(head_dim) whatever `scale` says."""

    def attend(self, q, k, v, lengths):
        return rule_attention(q, k, v, None, self.causal, lengths, self.head_dim**-0.5)


class HeadsMixed(Full):
    """Heads cut by a reshape without the transpose."""

    def project(self, x):
        batch, length, _ = x.shape
        shape = (batch, self.n_heads, length, self.head_dim)
        return tuple(W(x).reshape(shape) for W in (self.W_q, self.W_k, self.W_v))


class SharedHeadsInWrongOrder(Full):
    """Key heads repeated as 0 1 0 1, not 0 0 1 1."""

    def project(self, x):
        q, k, v = super().project(x)
        order = torch.arange(self.n_heads) % self.kv_heads * (self.n_heads // self.kv_heads)
        return q, k[:, order], v[:, order]


class RotaryOnKeysOnly(Full):
    """Queries are not turned."""

    def project(self, x):
        q, k, v = super().project(x)
        if self.positions == "rotary":
            q = self.W_q(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            k = rotate(q * 0 + self.W_k(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2))
        return q, k, v


class PositionsForgotten(Full):
    """An encoding is asked for and none applied."""

    def __init__(self, **attention):
        super().__init__(**attention)
        self.asked, self.positions = self.positions, "none"
        self.two_sided = False


class KeysDetached(Windowed):
    """No gradient flows through the keys."""

    def attend(self, q, k, v, lengths):
        return super().attend(q, k.detach(), v, lengths)


class BatchNormalised(Windowed):
    """Queries are centred over the batch."""

    def attend(self, q, k, v, lengths):
        return super().attend(q - q.mean(0, keepdim=True), k, v, lengths)


class InputChanged(Windowed):
    """The input is scaled in place."""

    def forward(self, x, lengths=None):
        with torch.no_grad():
            x.mul_(0.5)
        return super().forward(x, lengths)
