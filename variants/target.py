"""A target: somebody's function or class behind a dotted path, found, built, called and judged.

What is wrong with it is told in one line that names it and says what is allowed: ValueError where
the target, or what a config gives it, is at fault whatever is measured; RuntimeError where it
raised something of its own, which may be of this length, type or device only.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spanwise.errors import nearest, one_line

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
        except (Exception, SystemExit) as error:
            raise ValueError(
                f"{name}: found {path!r}, but importing {module} {_raises(error)}; {what}"
            ) from None
        for part in parts[cut:]:
            if not hasattr(found, part):
                inside = getattr(found, "__name__", type(found).__name__)
                raise ValueError(
                    f"{name}: found {path!r}, but {inside} has no {part!r}; {what}."
                    + nearest(part, _parts(found))
                )
            found = getattr(found, part)
        break
    if not callable(found):
        raise ValueError(f"{name}: found {path!r}, which is {type(found).__name__}; {what}")
    return found


def _parts(found: Any) -> list[str]:
    """Return the names in a module or class, with a package's modules that nobody imported yet."""
    names = [name for name in dir(found) if not name.startswith("_")]
    return names + [module.name for module in pkgutil.iter_modules(getattr(found, "__path__", []))]


def _remedy(package: str) -> str:
    top = package.partition(".")[0]
    if top in PEERS:
        return "allowed after: pip install 'spanwise[peers]'"
    here = {module.name for module in pkgutil.iter_modules()} | set(sys.stdlib_module_names)
    return "allowed: what Python can import here, after pip install where it is missing." + nearest(
        top, sorted(here)
    )


def _raises(error: BaseException) -> str:
    """Return 'raises ValueError: its message' in one line."""
    text = one_line(str(error))
    return f"raises {type(error).__name__}" + (f": {text}" if text else "")


def check_arguments(
    function: Any,
    path: str,
    arguments: Mapping[str, Any] | None = None,
    *,
    decided: Collection[str] = (),
    inputs: Sequence[str] = (),
) -> None:
    """Raise ValueError where ``function`` cannot be called so, as its signature tells.

    arguments: what it gets by keyword, those in ``decided`` by ``given``; None where it can get
    nothing so. inputs: the names of
    the tensors that it gets before them, by position. A function without a signature, as in C,
    will say so itself.
    """
    given = arguments or {}
    # What a decorator passes on by itself is its own affair, but the names are those behind it.
    own, behind = (_signature(function, follow) for follow in (False, True))
    if own is None or behind is None:
        return
    kinds = {p.kind for p in own}
    named = [p.name for p in behind if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    taken = [p.name for p in own if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    taken = taken[: len(inputs)]
    if len(taken) < len(inputs) and inspect.Parameter.VAR_POSITIONAL not in kinds:
        takes = f"takes {', '.join(taken)} only" if taken else "takes no tensor"
        raise ValueError(f"target: {path} {takes}; allowed: what is called with {_spoken(inputs)}")
    allowed = [name for name in named if name not in taken]
    anything = {p.kind for p in behind} & {inspect.Parameter.VAR_KEYWORD}
    for name in given:
        if name in taken or not (anything or name in allowed):
            place = "given" if name in decided else "keywords"
            why = "gets it as an input" if name in taken else "has no such argument"
            raise ValueError(
                f"{place}.{name}: {path} {why}; allowed: {', '.join(allowed) or 'none'}."
                + nearest(name, allowed)
            )
    missing = [
        p.name
        for p in own
        if p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and p.name not in (*taken, *given)
    ]
    if missing:
        after = f" after {', '.join(inputs)}" if inputs else ""
        what = "with a value in keywords, or in given where the model decides it"
        if arguments is None:
            what = f"what is called with {_spoken(inputs)} alone"
        raise ValueError(f"target: {path} needs {_spoken(missing)}{after}; allowed: {what}")


def _spoken(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _signature(function: Any, follow: bool) -> list[inspect.Parameter] | None:
    try:
        found = inspect.signature(function, follow_wrapped=follow)
    except (TypeError, ValueError):
        return None
    return list(found.parameters.values())


def build(found: type, path: str, arguments: Mapping[str, Any]) -> Any:
    """Return an instance of the class; raise ValueError in one line where its constructor raises.

    Where tensors are to be made without memory, a class that computes with them is built with,
    and then moved.
    """
    try:
        return found(**copy.deepcopy(dict(arguments)))
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        if torch.get_default_device().type == "meta":
            with torch.device("cpu"):
                made = build(found, path, arguments)
            return made.to("meta") if isinstance(made, nn.Module) else made
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        raise ValueError(
            f"target: {path}({given}) {_raises(error)}; allowed: what its constructor takes, in "
            "keywords or given"
        ) from error


def check_call(made: Any, path: str, inputs: Sequence[str]) -> None:
    """Raise ValueError where an instance cannot be called with the inputs of these names alone."""
    if isinstance(made, nn.Module):
        if type(made).forward is nn.Module.forward:
            raise ValueError(f"target: {path} has no forward; allowed: a module that has one")
        check_arguments(made.forward, f"{path}.forward", inputs=inputs)
    elif not callable(made):
        raise ValueError(
            f"target: {path} makes what cannot be called; allowed: a class with __call__"
        )
    else:
        check_arguments(made, path, inputs=inputs)


def call(
    made: Callable[..., Any], path: str, inputs: Mapping[str, Tensor], shape: Sequence[int]
) -> Tensor:
    """Return the output of ``made``, called with ``inputs``: a tensor (or the first of several).

    Raises RuntimeError for whatever the target raises, ValueError for an output that is no
    tensor, or of another shape than ``shape``.
    """
    try:
        result = made(*inputs.values())
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        like = next(iter(inputs.values()))
        raise RuntimeError(
            f"target: {path} {_raises(error)} (for {', '.join(inputs)} of {tuple(like.shape)}, "
            f"{_type(like)})"
        ) from error
    out = first(result)
    allowed = f"allowed: a tensor of {tuple(shape)}, or several results of which it is the first"
    if not isinstance(out, Tensor):
        what = "None" if out is None else type(out).__name__
        if isinstance(result, (tuple, list)):
            kind = type(result).__name__
            what = f"a {kind} that starts with {what}" if result else f"an empty {kind}"
        raise ValueError(f"target: {path} returned {what}; {allowed}")
    if tuple(out.shape) != tuple(shape):
        raise ValueError(f"target: {path} returned a shape of {tuple(out.shape)}; {allowed}")
    return out


def check_like(out: Tensor, path: str, inputs: Iterable[Tensor], trains: bool) -> None:
    """Raise ValueError where ``out`` is not of its inputs' type and place, or has no gradient.

    trains: whether gradients have to pass.
    """
    given = list(inputs)
    for found, expected in ((_type(out), _type(given[0])), (out.device, given[0].device)):
        if found != expected:
            raise ValueError(
                f"target: {path} returned {found} for inputs of {expected}; allowed: {expected}"
            )
    asked = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
    if trains and asked and not out.requires_grad:
        raise ValueError(
            f"target: {path} returned an output that passes no gradient to its inputs; allowed: "
            "one that does, or a subclass with trains_on_cpu = False"
        )


def first(result: Any) -> Any:
    """Return the output among a target's results: itself, or the first of several."""
    if isinstance(result, (tuple, list)):
        return result[0] if result else None
    return result


def versions(tensors: Iterable[Tensor]) -> list[int] | None:
    """Return how often each tensor was written to; None where torch does not count it."""
    given = list(tensors)
    if any(tensor.is_inference() for tensor in given):
        return None
    return [tensor._version for tensor in given]


def _type(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
