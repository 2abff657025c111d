"""The one command.

    python runner.py                                    one cell of the defaults
    python runner.py variant=windowed length=256        ... with other values
    python runner.py -m variant=full,windowed seed=0,1  every combination
    python runner.py experiment=quickstart              a whole study
    python runner.py action=report study=quickstart     its tables and page, from the records
    python runner.py --help                             every key and what it may be

Exit code: 0 all is well; 1 some cell has no ok record, after all others were done; 2 bad input,
told in one line, nothing written; 130 interrupted.
"""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    # An interrupt while the libraries load would end in their traceback.
    signal.signal(signal.SIGINT, lambda *_: os._exit(os.write(2, b"interrupted\n") and 130))

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

CONFIGS = Path(__file__).resolve().with_name("configs")


@hydra.main(config_path=str(CONFIGS), config_name="config", version_base="1.3")
def job(settings: DictConfig) -> Any:
    """Do what one composed config says: a cell of a sweep, or else its action."""
    # The body imports what it needs: worker processes get this function alone.
    from hydra.types import RunMode

    from spanwise import cell, composition, config, isolation

    hydra_config = HydraConfig.get()
    if hydra_config.mode == RunMode.MULTIRUN:
        isolation.follow_runner()
        values, choices = composition.resolve(settings, hydra_config.runtime.choices)
        return cell.run(values, choices, config.study_folder(values))
    raise SystemExit(act(settings, hydra_config.runtime.choices))


def act(settings: DictConfig, choices: Mapping[str, Any]) -> int:
    """Do the action that the config names; return the exit code, 2 after telling bad input."""
    from spanwise import actions, composition, config
    from spanwise.explain import KNOWN, explain

    try:
        values, own_choices = composition.resolve(settings, choices)
        config.check(values)
        return actions.find(values["action"])(values, own_choices)
    except KNOWN as error:
        print(f"error: {explain(error)}", file=sys.stderr)
        return 2


class Interrupts:
    """Raises KeyboardInterrupt for SIGINT, as Python does, and remembers that it did.

    Libraries turn what is raised inside them into errors of their own.
    """

    def __init__(self) -> None:
        self.seen = False
        signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, *_: object) -> None:
        self.seen = True
        raise KeyboardInterrupt


def main() -> int:
    """Run the command line; return the exit code."""
    from spanwise.commandline import arranged, check_flags
    from spanwise.explain import KNOWN, behind, explain, is_of_hydra
    from spanwise.isolation import RUNNER

    interrupts = Interrupts()
    sys.argv[1:] = arranged(sys.argv[1:])
    os.environ[RUNNER] = str(os.getpid())
    # Hydra then raises what is wrong, instead of printing it in its own words and exiting with 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    warnings.filterwarnings("error", message=r"[\s\S]*is not available", category=UserWarning)
    try:
        check_flags(sys.argv[1:])
        job()
    except (Exception, KeyboardInterrupt) as error:
        if interrupts.seen or isinstance(error, KeyboardInterrupt):
            print("interrupted", file=sys.stderr)
            return 130
        if isinstance(error, KNOWN):
            print(f"error: {explain(behind(error, CONFIGS, sys.argv[1:]))}", file=sys.stderr)
            return 2
        if isinstance(error, ValueError) and is_of_hydra(error):
            print(f"error: {explain(error)}", file=sys.stderr)
            return 2
        raise
    return 0


if __name__ == "__main__":
    sys.exit(main())
