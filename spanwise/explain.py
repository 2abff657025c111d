"""What Hydra and OmegaConf say of a bad command line or config, in one line of this program.

The line says what is wrong, where, what is allowed and, where there is one, the nearest match.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from spanwise.config import KEYS
from spanwise.errors import ConfigError, nearest, one_line
from spanwise.listing import files

KNOWN = (ConfigError, HydraException, OmegaConfBaseException, UserWarning)
"""What bad input makes the command raise."""


def explain(error: BaseException) -> str:
    """Return the line that tells a user what is wrong with the input."""
    if isinstance(error, ConfigError):
        return " ".join(str(error).split())
    if isinstance(error, MissingConfigException) and error.missing_cfg_file:
        return _missing_file(error)
    if isinstance(error, OverrideParseException):
        return _unreadable(error)
    key_error = _cause(error, OmegaConfBaseException)
    text = str(error)
    if text.startswith("Ambiguous value"):
        found = re.search(r"argument '(.*)'", text)
        return f"{found.group(1) if found else text}: several values; add -m to sweep over them"
    if text.startswith("Sweep parameters"):
        found = re.search(r"parameters '(.*)' requires", text)
        return f"{found.group(1) if found else text}: a sweep needs -m"
    if text.startswith("Could not override") and isinstance(key_error, OmegaConfBaseException):
        return _unknown_key(key_error, text)
    if isinstance(key_error, MissingMandatoryValue):
        return f"{key_error.full_key or one_line(str(key_error))}: a value is needed"
    if isinstance(key_error, OmegaConfBaseException):
        where = f"{key_error.full_key}: " if key_error.full_key else ""
        return where + one_line(str(key_error))
    if isinstance(error, UserWarning):
        found = re.search(r"path=(.*) is not", text)
        return f"hydra.searchpath: no folder {found.group(1) if found else one_line(text)}"
    if isinstance(error, ConfigCompositionException):
        return " ".join(text.split())[:500]
    return one_line(text) or type(error).__name__


def behind(error: BaseException, configs: Path, arguments: Sequence[str]) -> BaseException:
    """Return the error that made Hydra look for one cell where an experiment asks for a sweep.

    Where the config of a sweep cannot be composed, Hydra takes the command for a single run, and
    complains of its sweeps instead. configs: the folder of configs; arguments: the command's.
    """
    if not str(error).startswith(("Ambiguous value", "Sweep parameters")):
        return error
    texts = [text for text in arguments if not text.startswith("-")]
    parsed = OverridesParser.create().parse_overrides(texts)
    single = [t for t, one in zip(texts, parsed, strict=True) if not one.is_sweep_override()]
    try:
        with initialize_config_dir(str(configs), version_base="1.3"):
            compose("config", single, return_hydra_config=True)
    except Exception as real:
        return real
    return error


def is_of_hydra(error: BaseException) -> bool:
    """Return whether Hydra or OmegaConf raised ``error``: then the input is at fault."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    module = trace.tb_frame.f_globals.get("__name__", "") if trace else ""
    return module.partition(".")[0] in ("hydra", "omegaconf", "antlr4")


def _missing_file(error: MissingConfigException) -> str:
    path = str(error.missing_cfg_file)
    said = re.search(r"Available options in '(.*?)'", str(error))
    group = said.group(1) if said else path.rpartition("/")[0]
    name = path.removeprefix(f"{group}/")
    options = [str(option) for option in error.options or []]
    if not group:
        return f"no config named '{name}'"
    # Hydra names the options of a group and where it looked, not those in folders of the group.
    roots = re.findall(r"path=file://(.+)$", str(error), re.MULTILINE)
    shipped = {name for root in roots for name, _ in files(Path(root, group))}
    options += sorted(name for name in shipped if "/" in name)
    last = {option.rpartition("/")[2]: option for option in options}
    close = nearest(name, options) or nearest(name, last)
    for short, option in last.items():
        close = close.replace(f"'{short}'", f"'{option}'")
    return f"{group}: found '{name}'; allowed: {', '.join(options) or 'none'}." + close


def _unreadable(error: OverrideParseException) -> str:
    why = one_line(error.message)
    return f"cannot read {error.override!r}: {why}" if error.override else why


def _unknown_key(error: OmegaConfBaseException, text: str) -> str:
    found = re.search(r"override '(.*?)'", text)
    key = found.group(1) if found else str(error.full_key)
    parent, _, last = key.rpartition(".")
    node = error.parent_node
    names = [str(name) for name in node] if isinstance(node, DictConfig) else []
    allowed = [name for name in names if not name.startswith("_")]
    if not parent:
        allowed = [*KEYS, "experiment"]
    elif error.full_key and error.full_key != key:
        # The key breaks off above its last name: say which name is not there.
        key, last = str(error.full_key), str(error.full_key).rpartition(".")[2]
    elif isinstance(node, DictConfig) and node == {}:
        return f"{key}: no such key; allowed: none, or +{key}=VALUE to add it"
    kind = f" in {node._get_node('_target_')}" if "_target_" in names else ""
    told = f"{kind}; allowed: {', '.join(allowed) or 'none'}."
    return f"{key}: no such key{told}" + nearest(last, allowed)


def _cause(error: BaseException, kind: type[BaseException]) -> BaseException | None:
    current: BaseException | None = error
    while current is not None and not isinstance(current, kind):
        current = current.__cause__
    return current
