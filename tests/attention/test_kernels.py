import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spanwise.attention import dense_mask, lookup, plan, rule_attention
from spanwise.attention import group as group_module
from spanwise.attention import groups as groups_module
from spanwise.attention.blocks import blocks_attention
from spanwise.attention.group import Gathered
from spanwise.attention.groups import groups
from spanwise.attention.plan import forget
from spanwise.attention.slices import settings as settings_of_slices
from spanwise.errors import ConfigError
from tests.attention.strategies import LENGTHS, RULES


def inputs(length, batch=1, heads=2, dim=8, v_dim=None, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)

    def draw(last):
        drawn = torch.randn(batch, heads, length, last, dtype=dtype, generator=generator)
        return drawn.requires_grad_()

    return draw(dim), draw(dim), draw(v_dim or dim)


def with_gradients(q, k, v, *args, **kwargs):
    out = rule_attention(q, k, v, *args, **kwargs)
    weight = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1))
    return out, *torch.autograd.grad(out, (q, k, v), weight)


def run_blocks(q, k, v, plans, lengths, scale):
    out = blocks_attention(q, k, v, plans, lengths, scale)
    weight = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(1))
    return out, *torch.autograd.grad(out, (q, k, v), weight)


def assert_same(got, expected, tolerance=1e-10):
    for name, a, b in zip(("out", "dq", "dk", "dv"), got, expected, strict=True):
        assert torch.isfinite(a).all(), name
        assert (a - b).abs().max() <= tolerance, name


@settings(deadline=None, max_examples=120)
@given(RULES, LENGTHS, st.booleans(), st.data())
def test_blocks_equals_dense_with_gradients(sees, length, causal, data):
    batch = data.draw(st.integers(1, 2))
    lengths = data.draw(
        st.none()
        | st.lists(st.integers(0, length), min_size=batch, max_size=batch).map(torch.tensor)
    )
    v_dim = data.draw(st.sampled_from([8, 5]))
    qkv = inputs(length, batch, v_dim=v_dim)
    want = with_gradients(*qkv, sees, causal, lengths, kernel="dense")
    assert_same(with_gradients(*qkv, sees, causal, lengths, kernel="blocks"), want)
    # The tiles that "blocks" chooses depend on the machine: hold it to the oracle at others too.
    tiles = data.draw(st.lists(st.sampled_from([8, 16, 32, 64, 128]), min_size=2, max_size=2))
    plans = tuple(plan(sees, length, causal, tile) for tile in tiles)
    assert_same(run_blocks(*qkv, plans, lengths, 8**-0.5), want)


def test_a_query_with_nothing_to_see_beside_queries_whose_log_sum_exp_is_asked_for():
    flag = torch.arange(320) * 31 % 21 == 0

    def sees(q, k):  # only some queries see anything, and with tiles of 16 in several groups
        return (q - k < 1) & (lookup(flag, k) | lookup(flag, q))

    qkv = inputs(320)
    want = with_gradients(*qkv, sees, False, kernel="dense")
    plans = tuple(plan(sees, 320, False, tile) for tile in (64, 16))
    forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_module, "_MOST_QUERIES", 10**6)
        assert_same(run_blocks(*qkv, plans, None, 8**-0.5), want)


@settings(deadline=None, max_examples=40)
@given(RULES, LENGTHS, st.booleans(), st.sampled_from([0, 32, 10**6]), st.data())
def test_blocks_equals_dense_however_products_and_the_fused_kernel_share_the_work(
    sees, length, causal, most_queries, data
):
    # Which groups go to which follows what is faster: here all, some or none go to products.
    lengths = data.draw(
        st.none() | st.lists(st.integers(0, length), min_size=2, max_size=2).map(torch.tensor)
    )
    qkv = inputs(length, 2, heads=data.draw(st.sampled_from([1, 3])))
    want = with_gradients(*qkv, sees, causal, lengths, kernel="dense")
    forget()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(group_module, "_MOST_QUERIES", most_queries)
        plans = tuple(plan(sees, length, causal, tile) for tile in (64, 16))
        assert_same(run_blocks(*qkv, plans, lengths, 8**-0.5), want)
    forget()


@settings(deadline=None, max_examples=40)
@given(RULES, st.integers(1, 200), st.booleans(), st.data())
def test_auto_and_fused_equal_dense_with_gradients(sees, length, causal, data):
    lengths = data.draw(
        st.none() | st.lists(st.integers(0, length), min_size=2, max_size=2).map(torch.tensor)
    )
    qkv = inputs(length, 2)
    want = with_gradients(*qkv, sees, causal, lengths, kernel="dense")
    for kernel in ("auto", "fused"):
        assert_same(with_gradients(*qkv, sees, causal, lengths, kernel=kernel), want)


@pytest.mark.parametrize("causal", [True, False])
def test_scattered_key_blocks_are_gathered_and_their_gradients_added_back(causal, monkeypatch):
    # At lengths a test can afford a few calls serve random blocks; long ones reach this form.
    monkeypatch.setattr(groups_module, "_FEW_PIECES", -1)
    monkeypatch.setattr(groups_module, "_CALL_IN_PAIRS", 0)
    picks = torch.randint(0, 48, (2, 48), generator=torch.Generator().manual_seed(3))

    def sees(q, k):
        first, second = (lookup(row, q // 32) == k // 32 for row in picks)
        return first | second | (q // 32 == k // 32)

    plans = (plan(sees, 1530, causal, 32),) * 2
    assert any(isinstance(group, Gathered) for group in groups(plans[0]))
    qkv = inputs(1530, batch=2, heads=1)
    for lengths in (None, torch.tensor([1530, 800])):
        want = with_gradients(*qkv, sees, causal, lengths, kernel="dense")
        assert_same(run_blocks(*qkv, plans, lengths, 8**-0.5), want)


def test_slices_give_what_the_whole_gives(monkeypatch):
    qkv = inputs(600, batch=2)
    whole = with_gradients(*qkv, lambda q, k: q - k < 33, kernel="blocks")
    monkeypatch.setattr(settings_of_slices, "transient_bytes", 1)
    assert_same(with_gradients(*qkv, lambda q, k: q - k < 33, kernel="blocks"), whole, 1e-13)


def test_any_memory_layout_of_the_inputs_and_of_the_gradient_will_do():
    def sees(q, k):
        return (q - k < 20) | (k < 4)

    plain = inputs(90, batch=2)
    want = with_gradients(*plain, sees, kernel="dense")
    # As a model has them: positions before heads in memory; and with the last dimension not dense.
    for order in ((0, 2, 1, 3), (3, 0, 1, 2)):
        back = tuple(order.index(i) for i in range(4))
        moved = [x.detach().permute(order).contiguous().permute(back) for x in plain]
        moved = [x.requires_grad_() for x in moved]
        assert_same(with_gradients(*moved, sees, kernel="blocks"), want)
    out = rule_attention(*plain, sees, kernel="blocks")
    got = torch.autograd.grad(out.sum(), plain)  # an expanded gradient: all strides 0
    out = rule_attention(*plain, sees, kernel="dense")
    assert_same((out, *got), (out, *torch.autograd.grad(out.sum(), plain)))


def test_dense_is_softmax_over_the_seen_keys_by_hand():
    q = torch.tensor([[[[0.0], [1.0], [2.0]]]])
    v = torch.tensor([[[[1.0], [10.0], [100.0]]]])
    out = rule_attention(q, q, v, lambda q, k: q - k < 2, scale=1.0, kernel="dense")
    e = torch.exp(torch.tensor([0.0, 1.0, 2.0, 4.0]))
    expected = [
        1.0,
        (e[0] * 1 + e[1] * 10) / (e[0] + e[1]),
        (e[2] * 10 + e[3] * 100) / (e[2] + e[3]),
    ]
    assert out.flatten().tolist() == pytest.approx([float(x) for x in expected])


@pytest.mark.parametrize("kernel", ["dense", "fused", "blocks", "auto"])
def test_queries_that_see_nothing_give_zero_and_no_gradient(kernel):
    def sees(q, k):
        return (q >= 40) & (k >= 20)  # queries below 40 see nothing, keys below 20 are never seen

    out, dq, dk, dv = with_gradients(*inputs(70), sees, True, kernel=kernel)
    assert (out[:, :, :40] == 0).all()
    assert (dq[:, :, :40] == 0).all()
    assert (dk[:, :, :20] == 0).all()
    assert (dv[:, :, :20] == 0).all()
    assert (out[:, :, 40:] != 0).all()


@pytest.mark.parametrize("kernel", ["dense", "fused", "blocks", "auto"])
@pytest.mark.parametrize("causal", [True, False])
def test_padding_neither_is_seen_nor_sees(kernel, causal):
    qkv = inputs(50, batch=3)
    lengths = torch.tensor([50, 17, 0])
    before = rule_attention(*qkv, lambda q, k: abs(q - k) < 9, causal, lengths, kernel=kernel)
    changed = [x.detach().clone() for x in qkv]
    for x in changed:
        x[1, :, 17:] = 1e4
    after = rule_attention(*changed, lambda q, k: abs(q - k) < 9, causal, lengths, kernel=kernel)
    assert torch.equal(before, after)
    assert (before[1, :, 17:] == 0).all()
    assert (before[2] == 0).all()


@pytest.mark.parametrize("kernel", ["dense", "fused", "blocks", "auto"])
def test_huge_scores_stay_finite(kernel):
    q, k, v = inputs(40, dtype=torch.float32)
    got = with_gradients(q * 100, k * 1000, v, lambda q, k: q - k < 8, scale=1.0, kernel=kernel)
    assert all(torch.isfinite(x).all() for x in got)


@pytest.mark.parametrize("kernel", ["fused", "blocks", "auto"])
@pytest.mark.parametrize("window", [64, 200])
def test_a_window_of_the_length_or_more_is_full_attention(kernel, window):
    qkv = inputs(64)
    got = with_gradients(*qkv, lambda q, k: q - k < window, kernel=kernel)
    assert_same(got, with_gradients(*qkv, None, kernel="dense"))


@pytest.mark.parametrize("kernel", ["auto", "fused", "blocks", "dense"])
@pytest.mark.parametrize("scale", [0.0, -0.5])
@pytest.mark.parametrize(
    ("sees", "length"), [(None, 8), (lambda q, k: q // 256 == k // 256, 600), (None, 600)]
)
def test_a_scale_that_is_not_positive_is_a_scale(sees, length, scale, kernel):
    q, k, v = (torch.randn(1, 2, length, 8, dtype=torch.float64) for _ in range(3))
    for x in (q, k, v):
        x.requires_grad_()
    out = rule_attention(q, k, v, sees, True, scale=scale, kernel=kernel)
    scores = (q @ k.mT * scale).masked_fill(~dense_mask(sees, length, True), float("-inf"))
    expected = scores.softmax(-1) @ v
    torch.testing.assert_close(out, expected)
    grad = torch.randn_like(out)
    for found, wanted in zip(
        torch.autograd.grad(out, (q, k, v), grad),
        torch.autograd.grad(expected, (q, k, v), grad),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted)


def test_bfloat16_is_as_close_as_its_rounding_allows():
    exact = inputs(100, dtype=torch.float32)
    rounded = [x.detach().bfloat16().requires_grad_() for x in exact]
    got = with_gradients(*rounded, lambda q, k: q - k < 16, kernel="blocks")
    again = [x.detach().float().requires_grad_() for x in rounded]
    want = with_gradients(*again, lambda q, k: q - k < 16, kernel="dense")
    for a, b in zip(got, want, strict=True):
        assert a.dtype == torch.bfloat16
        assert (a.float() - b).abs().max() < 2**-6 * b.abs().max()


def test_the_mask_is_rows_of_queries_and_columns_of_keys():
    mask = dense_mask(lambda q, k: q - k < 2, 4, True)
    assert mask.int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": "block"}, "Did you mean 'blocks'"),
        ({"lengths": torch.tensor([3])}, "lengths must be int64 of shape"),
        ({"lengths": torch.tensor([3.0, 4.0])}, "lengths must be int64"),
        ({"lengths": [3, 4]}, "lengths must be an int64 tensor, got list"),
        ({"lengths": torch.tensor([-1, 4])}, "lengths must be from 0 to 8"),
        ({"lengths": torch.tensor([9, 4])}, "lengths must be from 0 to 8"),
        ({"scale": float("nan")}, "scale must be a finite number"),
        ({"scale": "a"}, "scale must be a finite number"),
        ({"causal": "no"}, "causal must be True or False"),
        ({"sees": "window"}, "sees must be a function"),
    ],
)
def test_bad_arguments_are_one_line(change, message):
    with pytest.raises(ConfigError, match=message) as caught:
        rule_attention(*inputs(8, batch=2), **{"sees": None, **change})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("shape", "types", "message"),
    [
        ((1, 2, 0, 4), (torch.float32,) * 3, "at least one position"),
        ((1, 2, 4, 0), (torch.float32,) * 3, "one dimension"),
        ((1, 2, 4, 4), (torch.int64,) * 3, "floating point"),
        ((1, 2, 4, 4), (torch.float32, torch.float16, torch.float16), "of one type"),
    ],
)
@pytest.mark.parametrize("kernel", ["auto", "dense", "blocks"])
def test_bad_inputs_are_one_line(shape, types, message, kernel):
    with pytest.raises(ConfigError, match=message):
        rule_attention(*(torch.zeros(shape, dtype=t) for t in types), None, kernel=kernel)


@pytest.mark.parametrize("kernel", ["auto", "fused", "blocks", "dense"])
@pytest.mark.parametrize("shape", [(0, 2, 600, 8), (2, 0, 600, 8)])
def test_nothing_in_nothing_out(shape, kernel):
    q, k, v = (torch.randn(shape, requires_grad=True) for _ in range(3))
    out = rule_attention(q, k, v, lambda q, k: q - k < 8, kernel=kernel)
    assert out.shape == shape
    assert [x.shape for x in torch.autograd.grad(out.sum(), (q, k, v))] == [shape] * 3


@pytest.mark.parametrize("kernel", ["auto", "blocks", "fused"])
def test_very_large_scores_leave_hidden_keys_hidden(kernel):
    q, k, v = torch.randn(3, 1, 1, 600, 8)
    q, k = q * 1e16, k * 1e17
    expected = rule_attention(q, k, v, lambda q, k: q - k < 8, kernel="dense")
    out = rule_attention(q, k, v, lambda q, k: q - k < 8, kernel=kernel)
    torch.testing.assert_close(out, expected)


def test_the_same_bits_twice():
    def sees(q, k):
        return (q - k < 40) | (k < 3)

    qkv = inputs(300, batch=2, dtype=torch.float32)
    first, second = (with_gradients(*qkv, sees, kernel="blocks") for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
