"""Wrong memories for generation: what a layer at once gets right, and step by step wrong."""

from typing import Any

from torch import Tensor

from variants.decoding import KeyValueCache
from variants.full import Full
from variants.windowed import Windowed


class RingOneShort(Windowed):
    """Its ring holds window - 1 entries: mask and cache disagree by one."""

    def cache(self, horizon: int, batch: int = 1) -> Any:
        short = Windowed(max(1, self.window - 1), d_model=self.d_model, n_heads=self.n_heads)
        return short.to(self.W_q.weight.dtype).cache(horizon, batch)


class EveryTokenIsTheFirst(Full):
    """Decodes every token at position 0: rotary angles are lost."""

    def decode(self, x: Tensor, cache: Any) -> Tensor:
        q, k, v = self.project_heads(x, 0, cache.horizon)
        cache.append(k, v)
        return self.W_o(cache.attend(q, self.scale).transpose(1, 2).flatten(2))


class StaleEntriesSeen(Windowed):
    """Attends to every entry of its memory, empty ones included."""

    def decode(self, x: Tensor, cache: Any) -> Tensor:
        q, k, v = self.project_heads(x, cache.length, cache.horizon)
        cache.append(k, v)
        scores = (q @ cache.keys.mT * self.scale).softmax(-1)
        return self.W_o((scores @ cache.values).transpose(1, 2).flatten(2))


class CacheGrows(Windowed):
    """Keeps every key, though only a window of them is ever seen again."""

    def cache(self, horizon: int, batch: int = 1) -> Any:
        cache = super().cache(horizon, batch)
        if cache is None:
            return None
        everything = KeyValueCache(None, horizon, cache.keys[:, :, :1], cache.values[:, :, :1])
        everything.rule = self.rule
        everything.slots.whole[:] = [False] * horizon
        return everything
