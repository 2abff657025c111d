"""submitit's launchers, made to wait for every job.

They wait for the jobs one after another, and stop at the first that was killed: the sweep would
account for its cells while others still run. Here a job that is lost is one lost job. And they
ask Slurm's accounting, which many clusters do not have, and then wait for a lost job for ever:
here the queue is asked.
(Hydra takes plugins only from a package of the name hydra_plugins.)
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from typing import Any
from unittest import mock

from hydra.core.utils import JobReturn, JobStatus

try:
    from hydra_plugins.hydra_submitit_launcher.submitit_launcher import (
        LocalLauncher,
        SlurmLauncher,
    )
except ImportError:
    # An extra: without it there are no such launchers.
    pass
else:

    class _Job:
        """A submitted job whose loss is an answer and no exception."""

        def __init__(self, job: Any):
            self.job = job

        def results(self) -> list[JobReturn]:
            """Return what the job returned, or that it failed, once it has ended."""
            try:
                self.wait()
                return list(self.job.results())
            except Exception as error:
                lost = JobReturn(status=JobStatus.FAILED)
                lost.return_value = error
                return [lost]

        def wait(self) -> None:
            """Return once the job has ended, or raise where it ended without an answer."""

    class _SlurmJob(_Job):
        def wait(self) -> None:
            """Return once there is an answer, or raise where the queue has no such job any more."""
            unseen = 0
            while not self.job.paths.result_pickle.exists():
                # Twice: an answer may come to this host's file system after the job has left.
                unseen = 0 if _queued(self.job.job_id) else unseen + 1
                if unseen > 2:
                    raise RuntimeError(f"Slurm's job {self.job.job_id} ended without an answer")
                time.sleep(2)

    def _queued(job: str) -> bool:
        asked = subprocess.run(
            ["squeue", "--noheader", f"--jobs={job}", "--format=%T"],
            capture_output=True,
            text=True,
            check=False,
        )
        if asked.returncode and "Invalid job id" not in asked.stderr:
            # The controller does not answer now: ask again.
            return True
        return bool(asked.stdout.strip())

    def _patiently(
        kind: type[_Job], launch: Any, jobs: Sequence[Sequence[str]], first: int
    ) -> Sequence[JobReturn]:
        import submitit

        submit = submitit.AutoExecutor.map_array

        def map_array(executor: Any, *arguments: Any) -> list[_Job]:
            return [kind(job) for job in submit(executor, *arguments)]

        with mock.patch.object(submitit.AutoExecutor, "map_array", map_array):
            returned: Sequence[JobReturn] = launch(jobs, initial_job_idx=first)
            return returned

    class PatientSlurm(SlurmLauncher):
        """Slurm's jobs, each waited for."""

        def launch(
            self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
        ) -> Sequence[JobReturn]:
            """Submit the jobs as an array and wait for all of them."""
            return _patiently(_SlurmJob, super().launch, job_overrides, initial_job_idx)

    class PatientLocal(LocalLauncher):
        """Local jobs, each waited for."""

        def launch(
            self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
        ) -> Sequence[JobReturn]:
            """Start the jobs and wait for all of them."""
            return _patiently(_Job, super().launch, job_overrides, initial_job_idx)
