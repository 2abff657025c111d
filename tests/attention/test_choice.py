"""What "auto" takes, and that choosing costs a call next to nothing."""

import dataclasses

import pytest
import torch

from spanwise.attention import choice as choice_module
from spanwise.attention import dispatch, rule_attention
from spanwise.attention.choice import choose
from spanwise.attention.dispatch import fastest


def window(q, k):
    return q - k < 16


def tensors(length, grad=False):
    return [torch.randn(1, 2, length, 8, requires_grad=grad) for _ in range(3)]


@pytest.mark.parametrize(("length", "kernel"), [(64, "fused"), (4096, "blocks")])
def test_auto_takes_one_call_where_the_sequence_is_short_and_blocks_where_it_is_long(
    length, kernel
):
    assert fastest(*tensors(length), window, True)[0] == kernel


@pytest.mark.parametrize("causal", [True, False])
def test_a_rule_that_hides_nothing_is_full_attention_without_a_mask(causal):
    kernel, sees = fastest(*tensors(300), lambda q, k: q - k < 300, causal)
    assert (kernel, sees) == ("fused", None)


def test_a_forward_pass_alone_and_training_are_weighed_apart(monkeypatch):
    made = dataclasses.replace(choose(window, 256, True, 2, 8), whole_forward=True)
    made = dataclasses.replace(made, whole_train=False)
    monkeypatch.setattr(dispatch, "choose", lambda *arguments: made)
    q, k, v = tensors(256, grad=True)
    assert fastest(q, k, v, window, True)[0] == "blocks"
    assert fastest(q.detach(), k.detach(), v.detach(), window, True)[0] == "fused"
    with torch.no_grad():
        assert fastest(q, k, v, window, True)[0] == "fused"


@pytest.mark.parametrize("length", [64, 4096])
def test_a_call_records_the_rule_once(length):
    calls = []

    def sees(q, k):
        calls.append(1)
        return q - k < 16

    q, k, v = tensors(length)
    rule_attention(q, k, v, sees)  # plans and masks are made once and kept
    calls.clear()
    rule_attention(q, k, v, sees)
    assert len(calls) == 1


def test_blocks_of_few_keys_in_common_cost_more_than_those_of_a_window():
    """A window's neighbour has read most of its keys: the model must tell it from chunks."""
    plans = [
        choice_module.plan_expression(choice_module.trace_rule(sees, True), 8192, True, 64)
        for sees in (lambda q, k: q - k < 256, lambda q, k: q // 256 == k // 256)
    ]
    each = [
        choice_module.estimate(plan, 4, 64, 2, backward=False) / plan.tiles_computed
        for plan in plans
    ]
    assert each[0] < each[1]
