"""What `action=NAME` can do: one table, each entry imported when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from spanwise.errors import ConfigError, nearest


@dataclass(frozen=True)
class Action:
    """An action: ``function`` is "module:name", called with the resolved config and the choices.

    It returns the exit code, and raises ConfigError for bad input.
    """

    function: str
    summary: str

    def __call__(self, config: dict[str, Any], choices: dict[str, Any]) -> int:
        """Do it."""
        module, _, name = self.function.partition(":")
        function: Callable[..., int] = getattr(importlib.import_module(module), name)
        return function(config, choices)


ACTIONS = {
    "run": Action("spanwise.study:run_one", "run the cell, or each cell of a sweep (default)"),
    "report": Action(
        "spanwise.report:run", "rebuild tables, plots and page of a study from its records"
    ),
    "maps": Action("spanwise.maps:run", "draw what each head of a trained model looks at"),
    "walkthrough": Action(
        "spanwise.walkthrough:run", "self-attention on a small sentence, every number shown"
    ),
    "check": Action(
        "spanwise.check.action:run", "check the variant: does it do what it says? exit 1 if not"
    ),
    "list": Action("spanwise.listing:run", "show variants, tasks, models and experiments"),
}


def find(name: Any) -> Action:
    """Return the action of that name, or raise ConfigError."""
    if name not in ACTIONS:
        raise ConfigError(
            f"action: found {name!r}; allowed: {', '.join(ACTIONS)}." + nearest(name, ACTIONS)
        )
    return ACTIONS[name]
