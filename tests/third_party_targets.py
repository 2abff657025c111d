"""Functions and modules of third parties, as targets of external variants: mostly wrong ones."""

import functools

import torch
from torch import nn
from torch.nn.functional import dropout, scaled_dot_product_attention


def causal(q, k, v):
    return scaled_dot_product_attention(q, k, v, is_causal=True)


def both(q, k, v):
    return scaled_dot_product_attention(q, k, v)


def ignores(q, k, v, is_causal):
    return scaled_dot_product_attention(q, k, v)


def nothing(q, k, v):
    return None


def several(q, k, v):
    return None, causal(q, k, v)


def empty(q, k, v):
    return ()


def table(q, k, v):
    return {"out": causal(q, k, v)}


def array(q, k, v):
    return causal(q, k, v).detach().numpy()


def half(q, k, v):
    return causal(q, k, v).half()


def truth(q, k, v):
    return causal(q, k, v) > 0


def shorter(q, k, v):
    return causal(q, k, v)[:, :, 1:]


def merged(q, k, v):
    return causal(q, k, v).transpose(1, 2).flatten(2)


def nan_at_three(q, k, v):
    out = causal(q, k, v).clone()
    out[:, :, 3] = torch.nan
    return out


def float_only(q, k, v):
    return causal(q.float(), k.float(), v.float())


def detached(q, k, v):
    return causal(q, k, v).detach()


def two(q, k):
    return q


def masked(q, k, v, mask):
    return causal(q, k, v)


def windowed(q, k, v, *, window, scale=None):
    return causal(q, k, v)


def wrong_inside(q, k, v):
    return causal(q, k, v, None)


def raises(q, k, v):
    raise RuntimeError("cannot do this\nnor that")


def leaves(q, k, v):
    raise SystemExit(3)


def eights(q, k, v):
    if q.shape[2] % 8:
        raise ValueError("the length must be a multiple of 8")
    return causal(q, k, v)


def eights_only_half(q, k, v):
    return eights(q, k, v).half()


def writes(q, k, v):
    q *= 2
    v -= 1
    return causal(q, k, v)


def writes_late(q, k, v):
    if q.shape[2] > 8:
        q *= 2
    return causal(q, k, v)


def dropping(q, k, v):
    return scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=0.5)


def transformed(q, k, v):
    """A causal mean of the values by a transform of the whole sequence, in float32."""
    length = v.shape[2]
    share = torch.ones(length) / torch.arange(1, length + 1)
    kernel, signal = torch.ones(length), v.float().transpose(2, 3)
    product = torch.fft.rfft(signal, 2 * length) * torch.fft.rfft(kernel, 2 * length)
    return (torch.fft.irfft(product, 2 * length)[..., :length] * share).transpose(2, 3).to(v.dtype)


def passes_mask(function):
    @functools.wraps(function)
    def inner(q, k, v):
        return function(q, k, v, mask=None)

    return inner


decorated = passes_mask(masked)


class Fails(nn.Module):
    def __init__(self, dim):
        super().__init__()
        raise RuntimeError(f"no weights for {dim}\nand none for others")


class Counts(nn.Module):
    """Computes with its weights when it is built, as without memory nothing can."""

    def __init__(self, dim):
        super().__init__()
        self.inner = nn.Linear(dim, dim)
        self.size = float(self.inner.weight.detach().abs().sum())

    def forward(self, x):
        return self.inner(x)


class Needs(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()

    def forward(self, x):
        return x


class Silent:
    def __init__(self, dim):
        pass


class NoForward(nn.Module):
    def __init__(self, dim):
        super().__init__()


class Three(nn.Module):
    def __init__(self, dim):
        super().__init__()

    def forward(self, q, k, v):
        return q


class Doubles(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.inner = nn.Linear(dim, 2 * dim)

    def forward(self, x):
        return self.inner(x)


class Writes(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.inner = nn.Linear(dim, dim)

    def forward(self, x):
        x += 1
        return self.inner(x)


class WritesInTraining(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, q, k, v):
        return causal(dropout(q, 1.0, self.training, inplace=True), k, v)


class Means(nn.Module):
    """The mean of all positions, through weights that start at zero."""

    def __init__(self, dim):
        super().__init__()
        self.inner = nn.Linear(dim, dim)
        nn.init.zeros_(self.inner.weight)

    def forward(self, x):
        return x + self.inner(x).mean(1, keepdim=True)


class Counting:
    """Counts its calls into its output: no two are alike."""

    def __init__(self):
        self.calls = 0

    def __call__(self, q, k, v):
        self.calls += 1
        return v * self.calls
