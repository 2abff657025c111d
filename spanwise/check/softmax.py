"""Checks of softmax attention against the oracle."""

from __future__ import annotations

from typing import Any

import torch

from spanwise.check.oracle import oracle, softmax_layer
from spanwise.check.subject import (
    D_MODEL,
    LENGTH,
    Failed,
    Skipped,
    Subject,
    expect_close,
    inputs,
)
from variants.interface import AttentionVariant, RuleAttention


def check_equals_oracle(subject: Subject) -> None:
    """Outputs and all gradients are those of dense masked attention in float64, to 1e-10."""
    lengths = torch.tensor([LENGTH, 14, 3])
    for case in subject.cases(positions=True):
        layer = softmax_layer(case.layer)
        toward = inputs(3, LENGTH, seed=1)
        results = []
        for run in (layer, lambda x, n, layer=layer: oracle(layer, x, n)):
            layer.zero_grad()
            x = inputs(3, LENGTH).requires_grad_()
            y = run(x, lengths)
            (y * toward).sum().backward()
            grads = {n: p.grad.clone() for n, p in layer.named_parameters() if p.grad is not None}
            results.append((y.detach(), x.grad, grads))
        (y, x_grad, grads), (y_oracle, x_oracle, grads_oracle) = results
        expect_close(y, y_oracle, f"{case.words}: output")
        expect_close(x_grad, x_oracle, f"{case.words}: gradient of the input")
        for name, expected in grads_oracle.items():
            if name not in grads:
                raise Failed(f"{case.words}: {name} gets no gradient; expected one")
            words = f"{case.words}: gradient of {name}"
            expect_close(grads[name], expected, words, names=("row", "column"))


def check_every_length(subject: Subject) -> None:
    """Every length modulo the window works, shorter than the window and 1 included."""
    window = subject.own.get("window", 5)
    for case in subject.cases():
        whole = case.layer(inputs(2, 2 * window + 4)) if case.causal else None
        for length in range(1, 2 * window + 4):
            x = inputs(2, 2 * window + 4)[:, :length]
            y = case.layer(x)
            words = f"{case.words}, length {length}: output"
            if isinstance(case.layer, AttentionVariant) and case.layer.is_softmax:
                expect_close(y, oracle(case.layer, x), words)
            elif whole is not None:
                expect_close(y, whole[:, :length], f"{words} against a longer sequence's")
            elif not torch.isfinite(y).all():
                raise Failed(f"{words} is not finite")


def check_long_window_is_full(subject: Subject) -> None:
    """A window as long as the sequence gives full attention."""
    subject.need("window")
    dense: dict[str, Any] = {"dilation": 1} if "dilation" in subject.own else {}
    for window in (LENGTH, LENGTH + 1, 3 * LENGTH):
        for case in subject.cases(window=window, **dense):
            if not case.causal:  # the last query sees only half of its window
                case = next(c for c in subject.cases(window=2 * window, **dense) if not c.causal)
            layer, x = softmax_layer(case.layer), inputs(2, LENGTH)
            expected = oracle(layer, x, rule=None)
            expect_close(
                layer(x), expected, f"{case.words}, length {LENGTH}, against full attention"
            )


def check_blind_queries(subject: Subject) -> None:
    """A query that sees no key outputs 0 and passes on no gradient, and nothing turns to NaN."""
    for case in subject.cases(positions=True):
        layer = case.layer
        if _asks_its_rule(layer):
            sees = layer.sees
            layer.sees = lambda q, k, sees=sees: sees(q, k) & (q >= 4)  # type: ignore[assignment]
            lengths = torch.tensor([LENGTH, 3])
        else:
            lengths = torch.tensor([LENGTH, 0])
        x = inputs(2, LENGTH).requires_grad_()
        y = layer(x, lengths)
        y.square().sum().backward()
        blind = torch.zeros(2, LENGTH, dtype=torch.bool)
        blind[1] = True
        if lengths[1]:
            blind[0, :4] = True
        expected = torch.where(blind[..., None], 0, y.detach())
        expect_close(y, expected, f"{case.words}: output where no key is seen", 0)
        if not torch.isfinite(y).all():
            raise Failed(f"{case.words}: queries without a key turn others to NaN; expected not")
        assert x.grad is not None
        grads = [("the input", x.grad), *((n, p.grad) for n, p in layer.named_parameters())]
        for name, grad in grads:
            if grad is not None and not torch.isfinite(grad).all():
                raise Failed(
                    f"{case.words}: the gradient of {name} is not finite where a query "
                    "sees no key; expected 0 from there"
                )
        silent = inputs(2, LENGTH).requires_grad_()
        layer(silent, lengths)[blind].sum().backward()
        zero = torch.zeros_like(silent)
        expect_close(silent.grad, zero, f"{case.words}: gradient from queries that see no key", 0)


def _asks_its_rule(layer: Any) -> bool:
    """Return whether narrowing ``sees`` narrows what is computed: not in a formula of its own."""
    if not isinstance(layer, RuleAttention) or layer.rule is None:
        return False
    x, sees = inputs(1, LENGTH), layer.sees
    before = layer(x)
    layer.sees = lambda q, k: sees(q, k) & (k >= 4)  # type: ignore[method-assign]
    after = layer(x)
    layer.sees = sees  # type: ignore[method-assign]
    return not torch.equal(before, after)


def check_large_scores(subject: Subject) -> None:
    """Scores of some 1e4 stay finite, outputs and gradients, and masks still hold."""
    for case in subject.cases():
        layer = case.layer
        for dtype in (torch.float32, torch.bfloat16):
            for size in (100.0, 300.0):
                x = (inputs(2, LENGTH) * size).to(dtype).requires_grad_()
                low = subject.build(causal=case.causal, dtype=dtype)
                y = low(x, torch.tensor([LENGTH, 14]))
                y.float().sum().backward()
                assert x.grad is not None
                for what, tensor in (("output", y), ("gradient", x.grad)):
                    if not torch.isfinite(tensor).all():
                        place = torch.isfinite(tensor).logical_not().nonzero()[0].tolist()
                        raise Failed(
                            f"{case.words}, {dtype}: {what} is not finite at sequence {place[0]}, "
                            f"position {place[1]}; expected finite with scores of 1e4"
                        )
        if isinstance(layer, AttentionVariant) and layer.is_softmax:
            x, lengths = inputs(2, LENGTH) * 300, torch.tensor([LENGTH, 14])
            expected = oracle(layer, x, lengths)
            words = f"{case.words}: output with scores of 1e4"
            expect_close(
                layer(x, lengths), expected, words, 1e-8 * float(expected.detach().abs().max())
            )


def check_scale(subject: Subject) -> None:
    """``scale`` multiplies the scores: doubling it is doubling W_q."""
    try:
        cases = list(subject.cases(scale=0.5))
    except ValueError as refusal:
        if not str(refusal).startswith("scale:"):
            raise
        raise Skipped(f"the variant takes no scale: {refusal}") from None
    for case in cases:
        layer, x = softmax_layer(case.layer), inputs(2, LENGTH)
        before = layer(x)
        doubled = softmax_layer(subject.build(causal=case.causal, scale=1.0))
        after = doubled(x)
        if (after - before).abs().max() < 1e-9:
            raise Failed(f"{case.words}: scale 0.5 and 1.0 give the same; expected other outputs")
        with torch.no_grad():
            layer.W_q.weight *= 2
        expect_close(after, layer(x), f"{case.words}: scale 1.0 against 0.5 with W_q doubled")


def check_kv_heads(subject: Subject) -> None:
    """Two key and value heads for four heads are four, each equal to its neighbour."""
    for case in subject.cases(n_heads=4):
        if not isinstance(case.layer, AttentionVariant):
            raise Skipped("the variant is no attention")
        few = subject.build(causal=case.causal, n_heads=4, kv_heads=2)
        state = few.state_dict()
        for name in ("W_k.weight", "W_v.weight"):
            if state[name].shape[0] != D_MODEL // 2:
                rows = f"{name} has {state[name].shape[0]} rows with kv_heads 2 of 4"
                raise Failed(f"{case.words}: {rows}; expected {D_MODEL // 2}")
            per_head = state[name].unflatten(0, (2, -1))
            state[name] = per_head.repeat_interleave(2, 0).flatten(0, 1)
        case.layer.load_state_dict(state)
        x, lengths = inputs(2, LENGTH), torch.tensor([LENGTH, 8])
        words = f"{case.words}: kv_heads 2 against 4, equal in pairs"
        expect_close(few(x, lengths), case.layer(x, lengths), words)


def check_attention_weights(subject: Subject) -> None:
    """The weights shown in pictures are those that make the output, 0 where nothing is seen."""
    for case in subject.cases(positions=True):
        layer = case.layer
        if not isinstance(layer, AttentionVariant):
            raise Skipped("the variant is no attention")
        x, lengths = inputs(2, LENGTH), torch.tensor([LENGTH, 8])
        weights = layer.attention_weights(x, lengths)
        _, _, v = layer.project(x)
        made = layer.W_o((weights @ v).transpose(1, 2).flatten(2))
        expect_close(layer(x, lengths), made, f"{case.words}: output against weights times values")
