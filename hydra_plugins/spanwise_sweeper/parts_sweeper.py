"""Hydra's sweeper, for a union of products: ``hydra.sweeper.parts``.

An experiment is seldom one product: each variant has parameters of its own, and a task its own
lengths. Each part is one product, as ``hydra.sweeper.params`` is; the study is all of them.

    hydra:
      sweeper:
        parts:
          - {variant: "full,windowed", length: "64,128", seed: "0,1"}
          - {variant: windowed, variant.window: "16,32"}

What the command line sets is set in every part, in place of the part's own value.
(Hydra takes plugins only from a package of the name hydra_plugins.)
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.utils import JobStatus
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf


class PartsSweeper(BasicSweeper):
    """Expand parts into jobs, run those that have no result yet, and account for all of them."""

    def __init__(
        self,
        max_batch_size: int | None = None,
        params: Any = None,
        parts: Any = None,
    ):
        super().__init__(max_batch_size=max_batch_size, params={} if params is None else params)
        self.parts = [{}] if parts is None else parts

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        """Give the launcher what its jobs need wherever they run; see Hydra's Sweeper."""
        from spanwise.config import check_study, root, study_folder
        from spanwise.errors import ConfigError

        launcher = config.hydra.launcher
        if launcher is not None and "submitit_folder" in launcher:
            own = {name: config[name] for name in ("study", "results")}
            check_study(own)
            launcher.submitit_folder = str(study_folder(own) / launcher.submitit_folder)
        if launcher is not None and "n_jobs" in launcher:
            workers = launcher.n_jobs
            if not isinstance(workers, int) or isinstance(workers, bool) or not workers:
                raise ConfigError(
                    f"hydra.launcher.n_jobs: found {workers!r}; allowed: a number of workers, "
                    "or -1 for one a core"
                )
        paths = [str(root()), *filter(None, [os.environ.get("PYTHONPATH")])]
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        super().setup(hydra_context=hydra_context, task_function=task_function, config=config)

    def sweep(self, arguments: list[str]) -> Any:
        """Do the sweep, or the action that the config names; leave with its exit code."""
        from spanwise import composition, config, study
        from spanwise.errors import ConfigError

        assert self.config is not None
        assert self.hydra_context is not None
        _check_shapes(self.params, self.parts)
        loader = self.hydra_context.config_loader
        fixed = list(OmegaConf.to_container(self.config.hydra.overrides.hydra))
        composer = composition.Composer(loader, self.config.hydra.job.config_name, fixed)
        jobs = expand(
            OverridesParser.create(config_loader=loader), self.params, self.parts, arguments
        )
        cells = [study.Cell(*composer.compose(job), overrides=job) for job in jobs]
        for cell in cells:
            config.check(cell.config)
        if len({str(cell.config["action"]) for cell in cells}) > 1:
            raise ConfigError("action: one command does one action")
        if cells[0].config["action"] != "run":
            from spanwise import actions

            first = cells[0]
            HydraConfig.instance().set_config(self.config)
            raise SystemExit(actions.find(first.config["action"])(first.config, first.choices))
        if len({(c.config["study"], c.config["results"]) for c in cells}) > 1:
            raise ConfigError("study: one sweep fills one study; give one name and one folder")
        raise SystemExit(study.run(cells, self._launch))

    def _launch(self, cells: Sequence[Any]) -> None:
        """Have the launcher do the jobs of these cells; raise what stopped the launcher."""
        assert self.launcher is not None
        jobs = [cell.overrides for cell in cells]
        first = 0
        failures = []
        for batch in self.split_overrides_to_chunks(jobs, self.max_batch_size):
            returned = self.launcher.launch(batch, initial_job_idx=first)
            first += len(batch)
            failures += [one._return_value for one in returned if one.status == JobStatus.FAILED]
        if failures:
            raise failures[0]


def _check_shapes(params: Any, parts: Any) -> None:
    from spanwise.errors import ConfigError

    if not isinstance(params, Mapping):
        raise ConfigError(f"hydra.sweeper.params: found {params!r}; allowed: key: values")
    if not isinstance(parts, Sequence) or isinstance(parts, str) or not parts:
        raise ConfigError(f"hydra.sweeper.parts: found {parts!r}; allowed: a list of key: values")
    for part in parts:
        if not isinstance(part, Mapping):
            raise ConfigError(f"hydra.sweeper.parts: found {part!r}; allowed: key: values")


def expand(
    parser: OverridesParser,
    params: Mapping[str, Any],
    parts: Sequence[Mapping[str, Any]],
    arguments: Sequence[str],
) -> list[list[str]]:
    """Return the override list of every job: for each part its product, doubles left out.

    A value of a part is what one writes on the command line, ``"32,64"``; a YAML list is swept
    over, and any other value is that one value.
    """
    jobs: dict[tuple[str, ...], list[str]] = {}
    for part in parts:
        texts = [f"{key}={_written(value)}" for key, value in {**params, **part}.items()]
        overrides = parser.parse_overrides([*texts, *arguments])
        for job in BasicSweeper.split_arguments(overrides, None)[0]:
            jobs.setdefault(tuple(sorted(job)), job)
    return list(jobs.values())


def _written(value: Any) -> str:
    """Return a part's value as the command line would have it."""
    if OmegaConf.is_list(value) or isinstance(value, list | tuple):
        return ",".join(_written(item) for item in value)
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
