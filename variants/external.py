"""Other people's implementations as variants: any function or module, named by its dotted path.

- ``Function``: ``f(q, k, v) -> out``, all (B, H, L, D), between the usual projections.
- ``Module``: ``x -> y``, both (B, L, d_model), with weights of its own.

A class among targets is built once, with ``keywords``; a function gets them in every call.
``given`` hands it what the model decides: names of d_model, n_heads, head_dim, causal, scale, or
``{its keyword: ours}`` where it calls them otherwise.

The target is not believed: who sees whom, and so ``keys_per_query``, is found by disturbing its
inputs (``spanwise.influence``), unless a subclass states a rule, which the checks then disturb.
Padding is never shown to it: a target that looks ahead gets each sequence cut to its length.

Shape suffixes: B batch, L sequence length, H heads, D head_dim.
"""

from __future__ import annotations

import copy
import functools
import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, cast

import torch
from torch import Tensor, nn

from spanwise import influence
from spanwise.errors import nearest
from spanwise.positions import ON_EMBEDDINGS
from variants.interface import AttentionVariant, Variant, one_of, padding

DIRECTIONS = ("causal", "bidirectional")
PEERS = ("local_attention", "transformers")
"""Packages that the extra ``peers`` installs."""


def load(path: str, name: str = "target") -> Any:
    """Return the object at the dotted path, ``package.module.thing`` or a part of a class.

    Raises ValueError, in one line, where there is none or its package is not installed.
    """
    what = "allowed: the dotted path of a function or a class, such as torch.nn.GRU"
    parts = path.split(".") if isinstance(path, str) else []
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ValueError(f"{name}: found {path!r}; {what}")
    for cut in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:cut])
        try:
            found = importlib.import_module(module)
        except ModuleNotFoundError as error:
            missing = error.name or module
            if missing == module or module.startswith(missing + "."):
                if cut > 1:
                    continue  # the last parts may be of a class in a shorter module
                raise ValueError(
                    f"{name}: found {path!r}, but no package {missing!r} is installed; "
                    f"{_remedy(missing)}"
                ) from None
            raise ValueError(
                f"{name}: found {path!r}, but {module} needs the package {missing!r}, which is "
                f"not installed; {_remedy(missing)}"
            ) from None
        except Exception as error:
            raise ValueError(
                f"{name}: found {path!r}, but importing {module} raises "
                f"{type(error).__name__}: {error}; {what}"
            ) from None
        for part in parts[cut:]:
            if not hasattr(found, part):
                inside = getattr(found, "__name__", type(found).__name__)
                raise ValueError(
                    f"{name}: found {path!r}, but {inside} has no {part!r}; {what}."
                    + nearest(part, [n for n in dir(found) if not n.startswith("_")])
                )
            found = getattr(found, part)
        break
    if not callable(found):
        raise ValueError(f"{name}: found {path!r}, which is {type(found).__name__}; {what}")
    return found


def _remedy(package: str) -> str:
    if package.partition(".")[0] in PEERS:
        return "allowed after: pip install 'spanwise[peers]'"
    return "allowed: what Python can import here, after pip install where it is missing"


class _External(Variant):
    """What functions and modules have in common: the target, and what it is given."""

    decisions: ClassVar[tuple[str, ...]] = ("d_model", "n_heads", "head_dim", "causal", "scale")
    """What of the model's decisions a target can be given."""

    def _name_target(
        self,
        target: str,
        keywords: Mapping[str, Any] | None,
        given: Any,
        direction: str | None,
    ) -> None:
        """Keep the target with its arguments; raise ValueError for what it does not take."""
        self.target, self.direction = target, direction
        found = load(target)
        constants, decided = _plain(keywords or {}), named(given)
        for ours in decided.values():
            one_of("given", ours, self.decisions)
        if "causal" in decided.values():
            if direction is not None:
                raise ValueError(
                    f"direction: found {direction!r}, but {target} is given causal; allowed: null"
                )
        elif direction is None:
            raise ValueError(
                f"direction: found null; allowed: {' or '.join(DIRECTIONS)}, whichever {target} "
                "is, or a keyword in given that takes causal"
            )
        elif self.causal != (one_of("direction", direction, DIRECTIONS) == "causal"):
            raise ValueError(
                f"causal: found {self.causal} (it is the task's), but {target} is {direction}; "
                f"allowed: {not self.causal}"
            )
        self.arguments = {**constants, **{n: getattr(self, ours) for n, ours in decided.items()}}
        _check_keywords(found, target, self.arguments, set(decided))

    def _make(self) -> Callable[..., Any]:
        """Return what is called: the target, or the instance of a class."""
        found: Any = load(self.target)
        if inspect.isclass(found):
            return cast(Callable[..., Any], found(**copy.deepcopy(self.arguments)))
        return functools.partial(found, **self.arguments)

    def cache(self, horizon: int, batch: int = 1) -> None:
        """Return None: what is external has no memory to generate from."""
        return


class Function(_External, AttentionVariant):
    """Attention by somebody's ``f(q, k, v)``, between this variant's own projections.

    target: dotted path of a function, or of a class whose instances are called. keywords: its
    further arguments. given: see above. direction: "causal" or "bidirectional" where it is not
    given causal.
    """

    label = "Function"
    colour = "#44AA99"
    paper = "the target's own"
    positions_allowed = (*ON_EMBEDDINGS, "rotary")
    """ALiBi would widen q and k, and with them the scale that a function takes by itself."""
    is_softmax = False

    def __init__(
        self,
        target: str,
        keywords: dict[str, Any] | None = None,
        given: list[Any] | dict[str, str] | None = None,
        direction: str | None = None,
        **attention: Any,
    ):
        super().__init__(**attention)
        self._name_target(target, keywords, given, direction)
        if attention.get("scale") is not None and "scale" not in named(given).values():
            raise ValueError(
                f"scale: found {self.scale}, but {target} is not given it; allowed: null, or a "
                "keyword in given that takes scale"
            )
        self.function = self._make()

    def attend(self, q: Tensor, k: Tensor, v: Tensor, lengths: Tensor | None) -> Tensor:
        """Return the function's outputs (B, H, L, D), each sequence seen up to its length."""
        return unpadded(self._call, (q, k, v), lengths, self.causal)

    def _call(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out = first(self.function(q, k, v))
        if out.shape != (*q.shape[:3], v.shape[3]):
            raise ValueError(
                f"target: {self.target} returned a shape of {tuple(out.shape)}; "
                f"allowed: {(*q.shape[:3], v.shape[3])}"
            )
        return out

    def weights(self, q: Tensor, k: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return each key's share in each output, (B, H, L, L).

        What the function makes of unit vectors as values: it must be linear in them.
        """
        if self.rule is not None:
            return super().weights(q, k, lengths)
        batch, heads, length, width = q.shape
        units = torch.eye(length, dtype=q.dtype, device=q.device)
        units = nn.functional.pad(units, (0, -length % width))
        shares = torch.cat(
            [
                self.attend(q, k, part.expand(batch, heads, length, width), lengths)
                for part in units.split(width, dim=1)
            ],
            dim=-1,
        )[..., :length]
        padded = padding(lengths, length)
        return shares if padded is None else shares.masked_fill(padded[:, None], 0)

    def mask(self, length: int) -> Tensor:
        """Return who sees whom as bool (1, L, L), row = query: measured where no rule says it."""
        if self.rule is not None:
            return super().mask(length)
        return influence.sight(*self._probe(length), _THRESHOLD)[None]

    def keys_per_query(self, length: int) -> float | None:
        """Return the mean number of keys that a query sees, measured where no rule says it."""
        if self.rule is not None:
            return super().keys_per_query(length)
        return _measured(self, length)

    def visibility(self, length: int) -> Tensor | None:
        """Return who sees whom, bool (L, L); None for lengths too great to measure it whole."""
        if self.rule is not None or length <= influence.EXACT_LENGTH:
            return self.mask(length).any(0)
        return None

    def _probe(self, length: int) -> tuple[Callable[..., Tensor], list[Tensor], list[Tensor]]:
        """Return what to run, and two sets of keys and values: queries stay as they are."""
        shape = (1, self.n_heads, length, self.head_dim)
        q, *rest = (_normal(i, shape) for i in range(5))
        function = _exact(self._make)

        def run(k: Tensor, v: Tensor) -> Tensor:
            return first(function(q.expand(len(k), -1, -1, -1), k, v))

        return run, rest[:2], rest[2:]


class Module(_External):
    """Somebody's module or callable ``x -> y`` on (B, L, d_model), with weights of its own.

    target: dotted path of a class, built with ``keywords`` and what is ``given`` (not scale), or
    of a function of x. The first of several results is y. direction: "causal" or "bidirectional"
    where it is not given causal. Where a position's own input reaches its output, it counts as
    seen.
    """

    label = "Module"
    colour = "#DDCC77"
    paper = "the target's own"
    decisions = ("d_model", "n_heads", "head_dim", "causal")

    def __init__(
        self,
        target: str,
        keywords: dict[str, Any] | None = None,
        given: list[Any] | dict[str, str] | None = None,
        direction: str | None = None,
        **model: Any,
    ):
        super().__init__(**model)
        for name, value, allowed in (
            ("scale", self.scale, None),
            ("kv_heads", self.kv_heads, self.n_heads),
        ):
            if value != allowed:
                raise ValueError(
                    f"{name}: found {value}, but {target} decides it; "
                    f"allowed: {'null' if allowed is None else allowed}"
                )
        if "head_dim" in named(given).values() and self.d_model % self.n_heads:
            raise ValueError(
                f"n_heads: found {self.n_heads}; allowed: a divisor of d_model {self.d_model}"
            )
        self.head_dim = self.d_model // self.n_heads
        self._name_target(target, keywords, given, direction)
        self.module = self._make()

    def forward(self, x: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Return y (B, L, d_model) from x (B, L, d_model), each sequence up to its length."""
        padded = padding(lengths, x.shape[1])
        if padded is not None:
            x = x.masked_fill(padded, 0)
        y = unpadded(self.mix, (x,), lengths, self.causal)
        y = nn.functional.dropout(y, self.dropout, self.training)
        return y if padded is None else y.masked_fill(padded, 0)

    def mix(self, x: Tensor) -> Tensor:
        """Return y (B, L, d_model) from sequences x without padding."""
        return first(self.module(x))

    def keys_per_query(self, length: int) -> float | None:
        """Return the mean number of keys that a query's output depends on, measured."""
        return _measured(self, length)

    def visibility(self, length: int) -> Tensor | None:
        """Return who sees whom, bool (L, L); None for lengths too great to measure it whole."""
        if length > influence.EXACT_LENGTH:
            return None
        return influence.sight(*self._probe(length), _THRESHOLD)

    def _probe(self, length: int) -> tuple[Callable[..., Tensor], list[Tensor], list[Tensor]]:
        module = _exact(self._make)
        shape = (1, length, self.d_model)
        return lambda x: first(module(x)), [_normal(0, shape)], [_normal(1, shape)]


_THRESHOLD = 1e-11
"""A difference above this of float64 outputs of order 1 is an influence, below it is rounding."""


def unpadded(
    run: Callable[..., Tensor],
    tensors: tuple[Tensor, ...],
    lengths: Tensor | None,
    causal: bool,
) -> Tensor:
    """Return ``run`` of tensors (B, ..., L, D), each sequence up to its length, 0 past it.

    What is causal meets padding only after all that counts, so it runs at once, and what it
    returns past the length is dropped by whoever calls. Else sequences of a length run together.
    """
    if lengths is None or causal:
        return run(*tensors)
    whole = tensors[-1].shape[-2]
    rows, outs = [], []
    for n in lengths.unique().tolist():
        chosen = (lengths == n).nonzero().flatten().to(tensors[0].device)
        cut = tuple(tensor[chosen][..., :n, :] for tensor in tensors)
        out = run(*cut) if n else torch.zeros_like(cut[-1])
        rows.append(chosen)
        outs.append(nn.functional.pad(out, (0, 0, 0, whole - n)))
    return torch.cat(outs)[torch.cat(rows).argsort()]


def named(given: Any) -> dict[str, str]:
    """Return the target's keyword -> our name, from names, {keyword: name} or a list of both."""
    if given is None:
        return {}
    if isinstance(given, str):
        return {given: given}
    if isinstance(given, Mapping):
        return {str(keyword): str(ours) for keyword, ours in given.items()}
    return {keyword: ours for part in given for keyword, ours in named(part).items()}


def first(result: Any) -> Tensor:
    """Return the output among a target's results: itself, or the first of several."""
    return result[0] if isinstance(result, (tuple, list)) else result


def _measured(layer: Any, length: int) -> float:
    arguments = json.dumps(layer.arguments, sort_keys=True, default=repr)
    key = (layer.target, arguments, layer.d_model, layer.n_heads, layer.causal, length)
    if key not in _counts:
        run, given, other = layer._probe(length)
        _counts[key] = influence.keys_per_query(run, given, other, _THRESHOLD)
    return _counts[key]


_counts: dict[tuple, float] = {}


def _exact(make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """Return a target made anew for measuring: on the CPU, in float64, always the same weights."""
    with torch.device("cpu"), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = make()
    return made.double().eval() if isinstance(made, nn.Module) else made


def _normal(number: int, shape: tuple[int, ...]) -> Tensor:
    generator = torch.Generator().manual_seed(7000 + number)
    return torch.randn(shape, dtype=torch.float64, generator=generator, device="cpu")


def _check_keywords(
    target: Any, path: str, arguments: Mapping[str, Any], decided: set[str]
) -> None:
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return  # built in: it will say so itself
    if any(p.kind == p.VAR_KEYWORD for p in parameters):
        return
    allowed = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for name in arguments:
        if name not in allowed:
            place = "given" if name in decided else "keywords"
            raise ValueError(
                f"{place}.{name}: {path} has no such argument; allowed: {', '.join(allowed)}."
                + nearest(name, allowed)
            )


def _plain(value: Any) -> Any:
    """Return a config's mappings and lists as plain ones, to be handed to strangers."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)) or type(value).__name__ == "ListConfig":
        return [_plain(inner) for inner in value]
    return value
