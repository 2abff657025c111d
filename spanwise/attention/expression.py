"""A rule as an expression: `sees` is run once on symbolic positions, which record what it does.

The recorded expression can then be evaluated on position tensors (the exact mask), on intervals of
positions (spanwise.attention.interval), and compared by its text, which is what the plan cache is
keyed by: two rules share a plan only if they are the same arithmetic with the same constants.
"""

from __future__ import annotations

import contextlib
import hashlib
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spanwise.errors import ConfigError

Rule = Callable[[Any, Any], Any]

ARITHMETIC: dict[str, Callable] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
}
COMPARISONS: dict[str, Callable] = {
    "<": operator.lt,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
LOGIC: dict[str, Callable] = {"&": operator.and_, "|": operator.or_, "^": operator.xor}


class Unsupported(TypeError):
    """The rule does something that symbolic positions cannot record."""


class Branch(Unsupported):
    """The rule asks Python for one answer, which tensors of positions do not have either."""


class Expression:
    """One node of a rule: an operation on other nodes, a position, a constant or a lookup.

    ``key`` is the node's text; equal texts are equal functions of the two positions.
    ``boolean`` tells truth values from whole numbers. A whole rule's node is a rule again: called
    on tensors of positions it gives the mask.
    """

    __slots__ = ("args", "boolean", "key", "op", "value")
    __array_ufunc__ = None  # numpy scalars leave the operation to us

    def __init__(
        self,
        op: str,
        args: tuple[Expression, ...] = (),
        value: Any = None,
        *,
        boolean: bool = False,
        text: str | None = None,
    ):
        self.op, self.args, self.value, self.boolean = op, args, value, boolean
        self.key: str = text if text is not None else f"{op}({','.join(a.key for a in args)})"

    def __call__(self, q: Any, k: Any) -> Any:
        """Return the node's values at positions q, k (tensors that broadcast)."""
        return evaluate(self, q, k)

    def __bool__(self) -> bool:
        raise Branch(
            "a rule cannot branch on positions (and, or, not, if, in, max, a < x < b): write & | ~ "
            "with each comparison in brackets, as in (0 <= q - k) & (q - k < 8)"
        )

    def __hash__(self) -> int:
        raise Branch(
            "a rule cannot look a position up in a set or a dict: write (k == 0) | (k == 5), or "
            "lookup(values, k)"
        )

    def __index__(self) -> int:
        raise Unsupported("a position is not an index; use lookup(values, x)")

    def __abs__(self):
        return _numeric("abs", self)

    def __neg__(self):
        return _numeric("-", 0, self)

    def __pos__(self):
        return _numeric("+", 0, self)

    def __invert__(self):
        if not self.boolean:
            raise Unsupported("~ is defined for truth values only")
        return Expression("~", (self,), boolean=True)


def constant(value: Any) -> Expression:
    """Return ``value`` as a node: an Expression as it is, a whole number or truth value wrapped."""
    if isinstance(value, Expression):
        return value
    if isinstance(value, Tensor) and value.dim() == 0 and not value.is_floating_point():
        value = value.item()
    if isinstance(value, bool | np.bool_):
        return Expression("const", value=bool(value), boolean=True, text=str(bool(value)))
    if isinstance(value, int | np.integer):
        if not -(2**63) <= value < 2**63:
            raise Unsupported(f"a rule's constants have 64 bits, found {value}")
        return Expression("const", value=int(value), text=str(int(value)))
    raise Unsupported(f"a rule's constants are whole numbers, not {type(value).__name__}")


def _numeric(op: str, *args: Any) -> Expression:
    nodes = tuple(constant(a) for a in args)
    if any(n.boolean for n in nodes):
        raise Unsupported(f"{op} is defined for whole numbers only")
    return Expression(op, nodes)


def _compare(op: str, left: Any, right: Any) -> Expression:
    nodes = (constant(left), constant(right))
    if nodes[0].boolean != nodes[1].boolean:
        raise Unsupported(f"{op} compares a truth value with a number")
    if nodes[0].boolean:
        if op not in ("==", "!="):
            raise Unsupported(f"{op} is defined for whole numbers only")
        differ = Expression("^", nodes, boolean=True)
        return ~differ if op == "==" else differ
    return Expression(op, nodes, boolean=True)


def _logical(op: str, left: Any, right: Any) -> Expression:
    nodes = (constant(left), constant(right))
    if not (nodes[0].boolean and nodes[1].boolean):
        raise Unsupported(f"{op} is defined for truth values only")
    return Expression(op, nodes, boolean=True)


def _install_operators() -> None:
    def both(build: Callable, op: str, name: str) -> None:
        setattr(Expression, f"__{name}__", lambda self, other: build(op, self, other))
        setattr(Expression, f"__r{name}__", lambda self, other: build(op, other, self))

    for op, name in {"+": "add", "-": "sub", "*": "mul", "//": "floordiv", "%": "mod"}.items():
        both(_numeric, op, name)
    for op, name in {"&": "and", "|": "or", "^": "xor"}.items():
        both(_logical, op, name)
    for op, name in {"<": "lt", "<=": "le", "==": "eq", "!=": "ne"}.items():
        setattr(Expression, f"__{name}__", lambda s, o, op=op: _compare(op, s, o))
    for op, name in {"<": "gt", "<=": "ge"}.items():
        setattr(Expression, f"__{name}__", lambda s, o, op=op: _compare(op, o, s))


_install_operators()
QUERY = Expression("q", text="q")
KEY = Expression("k", text="k")
CAUSAL = Expression("<=", (KEY, QUERY), boolean=True)
EVERYTHING = constant(True)


def lookup(values: Any, x: Any) -> Any:
    """Return ``values[x]``: any per-position whole number or flag, for use inside a rule.

    values: 1-D integer or bool tensor, array or list (a document number, a global flag...), one
    entry for every position that ``x`` can take; negative ``x`` counts from the end. Rules count in
    64 bits whatever the table's own type. x: what a rule computes from its positions. On tensors
    this is plain indexing; on an interval of positions it becomes the least and the greatest value
    there.

    Raises ConfigError for any other table or index. An index beyond the table, for any pair of
    positions, is refused when the rule is planned or evaluated.
    """
    values = _table(values)
    if isinstance(x, Expression):
        if x.boolean:
            raise Unsupported("lookup needs a whole number as its index")
        flat = values.detach().cpu().contiguous()
        digest = hashlib.sha256(flat.view(torch.uint8).numpy().data).hexdigest()
        flags = values.dtype == torch.bool
        text = f"lookup({digest},{values.dtype},{values.numel()},{x.key})"
        return Expression("lookup", (x,), flat, boolean=flags, text=text)
    index = x if isinstance(x, Tensor) else _whole(x)
    if index is None or index.dtype == torch.bool or index.is_floating_point():
        found = f"a tensor of {x.dtype}" if isinstance(x, Tensor) else repr(x)
        raise ConfigError(f"lookup(values, x) needs whole numbers as x, got {found}")
    try:
        found = values.to(index.device)[index.long()]
    except IndexError:
        raise ConfigError(
            f"lookup(values, x): x runs from {int(index.min())} to {int(index.max())}, but values "
            f"has {len(values)} entries; allowed: 0 to {len(values) - 1}, and from the end -1 to "
            f"-{len(values)}"
        ) from None
    return _wide(found) if isinstance(x, Tensor) else found.item()


def _whole(x: Any) -> Tensor | None:
    return (
        torch.tensor(int(x))
        if isinstance(x, int | np.integer) and not isinstance(x, bool)
        else None
    )


def _table(values: Any) -> Tensor:
    found = values if isinstance(values, Tensor) else None
    if isinstance(values, np.ndarray | list | tuple):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            found = torch.as_tensor(values)
    if found is None:
        raise ConfigError(
            f"lookup needs a 1-D integer or bool tensor, got a {type(values).__name__}"
        )
    if found.dim() != 1 or found.numel() == 0 or found.is_floating_point() or found.is_complex():
        raise ConfigError(
            f"lookup needs a 1-D integer or bool tensor, got {found.dtype} of shape "
            f"{tuple(found.shape)}"
        )
    if found.dtype in (torch.uint16, torch.uint32, torch.uint64):  # torch hardly computes with them
        found = found.to(torch.int64)
        if (found < 0).any():
            raise ConfigError("lookup needs a table of numbers below 2**63")
    return found


def _wide(found: Tensor) -> Tensor:
    """Return what was looked up as a rule counts: in 64 bits, whatever the table is stored in."""
    return found if found.dtype == torch.bool else found.long()


def trace(sees: Rule | None) -> Expression:
    """Return the expression that ``sees`` computes; ``None`` is the rule that sees everything.

    Raises Unsupported where the rule does what symbolic positions cannot record (a branch, a float,
    an operation of torch or math): such a rule can still be evaluated on tensors, pair by pair.
    Raises ConfigError where it returns numbers.
    """
    if sees is None:
        return EVERYTHING
    if isinstance(sees, Expression):
        return sees
    try:
        node = constant(sees(QUERY, KEY))
    except (Unsupported, ConfigError):
        raise
    except Exception as error:
        raise Unsupported(f"{type(error).__name__}: {error}") from error
    if not node.boolean:
        raise ConfigError(f"a rule must return truth values, got the number {spoken(node)}")
    return node


def positions_in(node: Expression) -> set[str]:
    """Return which of the two positions the node depends on: "q", "k", both or none."""
    if node.op in ("q", "k"):
        return {node.op}
    return set().union(*(positions_in(a) for a in node.args))


def spoken(node: Expression, inside: bool = False) -> str:
    """Return the node as a rule is written, tables as ``values``, for messages."""
    if node.op in ("lookup", "abs"):
        (x,) = (spoken(a) for a in node.args)
        return f"lookup(values, {x})" if node.op == "lookup" else f"abs({x})"
    if not node.args:
        return node.key
    parts = [spoken(a, inside=True) for a in node.args]
    text = f"{parts[0]} {node.op} {parts[1]}" if len(parts) == 2 else f"{node.op}{parts[0]}"
    return f"({text})" if inside else text


def freeze(node: Expression) -> Expression:
    """Return ``node`` with its lookup tables copied, so that later writes to them do not reach."""
    if not node.args:
        return node
    value = node.value.clone() if node.op == "lookup" else node.value
    args = tuple(freeze(a) for a in node.args)
    return Expression(node.op, args, value, boolean=node.boolean, text=node.key)


def evaluate(node: Expression, q: Tensor, k: Tensor) -> Any:
    """Return the node's value at positions ``q`` and ``k`` (integer tensors that broadcast)."""
    if node.op == "q":
        return q
    if node.op == "k":
        return k
    if node.op == "const":
        return node.value
    args = [evaluate(a, q, k) for a in node.args]
    if node.op == "lookup":
        index = args[0] if isinstance(args[0], Tensor) else torch.tensor(args[0], device=q.device)
        return _wide(node.value.to(q.device)[index])
    if node.op == "abs":
        return abs(args[0])
    if node.op == "~":
        return ~args[0] if isinstance(args[0], Tensor) else not args[0]
    for table in (ARITHMETIC, COMPARISONS, LOGIC):
        if node.op in table:
            return table[node.op](*args)
    raise AssertionError(node.op)
