"""Wrong rules: each says of itself what it does, so only the meaning of its words gives it away."""

from variants.chunked import Chunked
from variants.interface import RuleAttention
from variants.local_global import LocalGlobal
from variants.windowed import Windowed


class OneKeyMore(Windowed):
    """A window of w that ends at w keys before the query, not w - 1 (zoology, attention-gym)."""

    def sees(self, q, k):
        return (q - k <= self.window) & (k - q <= self.after)


class OneKeyLess(Windowed):
    """The window without its last key."""

    def sees(self, q, k):
        return (q - k < max(1, self.before)) & (k - q <= self.after)


class WindowOnEachSide(Windowed):
    """Bidirectional: `window` keys on each side (Longformer's one-sided window)."""

    def sees(self, q, k):
        return abs(q - k) <= self.window


class WithoutItself(Windowed):
    """The query's own key is left out."""

    def sees(self, q, k):
        return super().sees(q, k) & (q != k)


class StrideForWindow(RuleAttention):
    """'Local' attention that groups by stride, not by neighbourhood (Long Range Arena)."""

    label, colour = "Stride", "#000000"

    def __init__(self, window, **attention):
        super().__init__(**attention)
        self.window = Chunked(window, **attention).window

    def sees(self, q, k):
        return q % self.window == k % self.window


class WrongOperator(LocalGlobal):
    """The window AND the globals, for OR."""

    def sees(self, q, k):
        return (q - k <= self.before) & (k - q <= self.after) & self.beyond_window(q, k)


class NoGlobals(LocalGlobal):
    """Global tokens that are none."""

    def sees(self, q, k):
        return (q - k <= self.before) & (k - q <= self.after)


class DeafGlobals(LocalGlobal):
    """Global tokens that are seen by all and see only their window."""

    def beyond_window(self, q, k):
        return k < self.global_tokens


class OneGlobalMore(LocalGlobal):
    """One token more than asked for is global."""

    def beyond_window(self, q, k):
        return (k <= self.global_tokens) | (q <= self.global_tokens)


class GlobalsAtTheEnd(LocalGlobal):
    """Global tokens counted from the window's edge, not from the start."""

    def beyond_window(self, q, k):
        first = self.window
        return (k >= first) & (k < first + self.global_tokens)


class LongWindowForgetsItsStart(Windowed):
    """A window of the sequence's length or more wraps around, and loses keys."""

    def sees(self, q, k):
        return super().sees(q, k) & ((q - k) % 20 < self.window) & (q - k < 20)


class AnyWindow(Windowed):
    """A window of 0 or less is accepted."""

    def __init__(self, window, **attention):
        super().__init__(1, **attention)
        self.window, self.before, self.after = window, window - 1, 0


class SwallowsArguments(Windowed):
    """Unknown arguments vanish."""

    def __init__(self, window, d_model, n_heads, no_such_argument=None, **attention):
        super().__init__(window, d_model=d_model, n_heads=n_heads, **attention)


class WrongCount(Windowed):
    """keys_per_query is the window, whatever the start of the sequence sees."""

    def keys_per_query(self, length):
        return float(self.window)
