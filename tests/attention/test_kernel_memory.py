"""Memory of the blocks kernel: linear in length, bounded beyond inputs and outputs, never L x L."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from spanwise.attention import rule_attention
from spanwise.memory import measure_peak

WINDOW = 256


def training_step(length, heads=4, dim=64, sees=lambda q, k: q - k < WINDOW, causal=True):
    q, k, v = (torch.zeros(1, heads, length, dim).requires_grad_() for _ in range(3))
    grad = torch.zeros(1, heads, length, dim)

    def step():
        out = rule_attention(q, k, v, sees, causal, kernel="blocks")
        return torch.autograd.grad(out, (q, k, v), grad)

    step()  # plans and masks are built once and kept
    return step


def test_a_training_step_needs_the_same_bytes_a_token_at_any_length():
    short, long = (measure_peak(training_step(length)).peak for length in (4_096, 65_536))
    # Beside the inputs: output, three gradients, log-sum-exp, and one slice's own memory.
    assert long < 0.5 * 2**30
    inputs = 4 * 4 * 64 * 4  # bytes a token of q, k, v and the gradient that comes in
    assert short / 4_096 + inputs == pytest.approx(long / 65_536 + inputs, rel=0.05)


class Largest(TorchDispatchMode):
    """Records the most bytes that any tensor made under it has."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple) else (made,):
            if isinstance(tensor, torch.Tensor):
                self.bytes = max(self.bytes, tensor.untyped_storage().nbytes())
        return made


@pytest.mark.parametrize("causal", [True, False])
def test_nothing_of_size_length_squared_is_made(causal):
    length = 8_192

    def sees(q, k):
        return (abs(q - k) < 77) | (k < 5) | (q < 5)

    q, k, v = (torch.zeros(1, 1, length, 8).requires_grad_() for _ in range(3))
    with Largest() as largest:  # planning included
        out = rule_attention(q, k, v, sees, causal, kernel="blocks")
        torch.autograd.grad(out.sum(), (q, k, v))
    assert largest.bytes < length**2 / 4  # a quarter of the smallest mask
