"""Checks of low precision, by error budgets that the variant's own float64 run sets."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from spanwise.check.subject import LENGTH, Failed, Skipped, Subject, expect_close, inputs
from variants.interface import Variant

SHARE = 8.0
"""How often the budget may hold the rounding that is unavoidable: of each module's output."""


def check_float32(subject: Subject) -> None:
    """float32 is off from float64 by no more than rounding explains."""
    _check(subject, torch.float32)


def check_bfloat16(subject: Subject) -> None:
    """bfloat16 is off from float64 by no more than rounding explains."""
    _check(subject, torch.bfloat16)


def check_float16(subject: Subject) -> None:
    """float16 is off from float64 by no more than rounding explains."""
    _check(subject, torch.float16)


def check_cuda(subject: Subject) -> None:
    """On a GPU, float32 and bfloat16 are off from the CPU's float64 by no more than rounding."""
    if not torch.cuda.is_available():
        raise Skipped("there is no CUDA device")
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        _check(subject, dtype, "cuda")


def _check(subject: Subject, dtype: torch.dtype, device: str = "cpu") -> None:
    for case in subject.cases(positions=True):
        layer = case.layer
        # What low precision is given is already rounded: that error is not the variant's.
        for tensor in (*layer.parameters(), *layer.buffers()):
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(dtype).double()
        x, lengths = inputs(2, LENGTH).to(dtype).double(), torch.tensor([LENGTH, 14])
        with torch.no_grad():
            exact = layer(x, lengths)
            rounded = _with_rounding(layer, x, lengths, dtype)
            unavoidable = float((rounded - exact).abs().max())
            eps = torch.finfo(dtype).eps * float(exact.abs().max())
            low = subject.build(causal=case.causal, positions=layer.positions, dtype=dtype)
            low.load_state_dict(layer.state_dict())
            found = low.to(device)(x.to(device, dtype), lengths.to(device))
            if found.device.type != device:
                raise Failed(f"{case.words}: the output is on {found.device}; expected {device}")
            found = found.cpu().double()
        words = f"{case.words}: {str(dtype).removeprefix('torch.')} on {device} against float64"
        expect_close(found, exact, words, SHARE * (unavoidable + eps))


def _with_rounding(layer: Variant, x: Tensor, lengths: Tensor, dtype: torch.dtype) -> Tensor:
    """Run in float64, rounding what each inner module puts out to ``dtype``."""

    def round_output(module: nn.Module, args: Any, out: Any) -> Any:
        return out.to(dtype).to(out.dtype) if isinstance(out, Tensor) else out

    inner = [m for m in layer.modules() if m is not layer]
    hooks = [m.register_forward_hook(round_output) for m in inner]
    try:
        return layer(x, lengths)
    finally:
        for hook in hooks:
            hook.remove()
