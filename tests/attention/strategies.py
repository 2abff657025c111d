"""Random rules, lengths and inputs for the property tests of the attention library."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from spanwise.attention import lookup

SIZES = st.sampled_from([1, 2, 3, 7, 16, 31, 32, 33, 64, 100, 128, 255])


def _window(size):
    return (f"q-k<{size}", lambda q, k: q - k < size)


def _both_ways(size):
    return (f"abs<{size}", lambda q, k: abs(q - k) < size)


def _chunk(size):
    return (f"chunk{size}", lambda q, k: q // size == k // size)


def _dilation(size):
    return (f"dilated{size}", lambda q, k: (q - k) % size == 0)


def _globals(size):
    return (f"global{size}", lambda q, k: (k < size) | (q < size))


def _key_stride(size):
    return (f"stride{size}", lambda q, k: k % size == size - 1)


def _documents(size):
    document = (torch.arange(600) * 7919 % 97).cumsum(0) // (40 * size)
    return (f"document{size}", lambda q, k: lookup(document, q) == lookup(document, k))


def _flags(size):
    flag = torch.arange(600) * 31 % (size + 5) == 0
    return (f"flag{size}", lambda q, k: lookup(flag, k) | lookup(flag, q))


def _far(size):
    return (f"far{size}", lambda q, k: 2 * q - 3 * k + 5 >= size)


ATOMS = st.builds(
    lambda make, size: make(size),
    st.sampled_from(
        [
            _window,
            _both_ways,
            _chunk,
            _dilation,
            _globals,
            _key_stride,
            _documents,
            _flags,
            _far,
        ]
    ),
    SIZES,
)


def _joined(inner):
    def both(a, b):
        return st.sampled_from(
            [
                (f"({a[0]} & {b[0]})", lambda q, k: a[1](q, k) & b[1](q, k)),
                (f"({a[0]} | {b[0]})", lambda q, k: a[1](q, k) | b[1](q, k)),
                (f"({a[0]} ^ {b[0]})", lambda q, k: a[1](q, k) ^ b[1](q, k)),
                (f"~{a[0]}", lambda q, k: ~a[1](q, k)),
            ]
        )

    return st.tuples(inner, inner).flatmap(lambda pair: both(*pair))


class NamedRule:
    """A rule whose repr says what it is, so that a failing example can be read."""

    def __init__(self, named):
        self.name, self.sees = named

    def __call__(self, q, k):
        return self.sees(q, k)

    def __repr__(self):
        return self.name


RULES = st.recursive(ATOMS, _joined, max_leaves=4).map(NamedRule)
LENGTHS = st.one_of(st.integers(1, 600), st.sampled_from([1, 63, 64, 65, 128, 511, 512, 600]))
