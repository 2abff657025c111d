"""A visibility rule in, fast exact attention out. Usable alone.

from spanwise.attention import rule_attention
out = rule_attention(q, k, v, lambda q, k: q - k < 32)
"""

from spanwise.attention.dense import dense_mask
from spanwise.attention.dispatch import KERNELS, rule_attention
from spanwise.attention.expression import lookup
from spanwise.attention.plan import PairwiseWarning, Plan, kernel_flops, keys_per_query, plan

__all__ = [
    "KERNELS",
    "PairwiseWarning",
    "Plan",
    "dense_mask",
    "kernel_flops",
    "keys_per_query",
    "lookup",
    "plan",
    "rule_attention",
]
