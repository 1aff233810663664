"""The queue of the fidelity table: six jobs, their GPUs, and the options of four policies.

The jobs import this module too, so it imports no framework.
"""

import sys
from dataclasses import dataclass
from typing import Any

from shoal.wire.messages import Submission
from shoal.workload.schema import Job

CLUSTER, KIND = "gpu:1x4", "gpu"

BATCH, MOST_BATCH, MOST_LOCAL = 64, 256, 128
"""Samples of a step initially and at most, and the most samples of one pass on a GPU."""

EPOCH_SAMPLES = 1024

TUNE_EVERY = 3.0
"""Seconds between two decisions of an adaptive job about its batch size."""

START_SECONDS = 8.0
"""Seconds from the start of a job's processes to its first step, as if more than PyTorch had to be loaded."""

MODELS = {"narrow": (0.04, 0.0006), "broad": (0.06, 0.001)}
"""Declared times by model: fixed seconds of a pass, and seconds per sample."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job of the queue: submission time in seconds, GPUs (an elastic job uses one or two), model and epochs."""

    name: str
    at: float
    gpus: int
    model: str
    epochs: int

    @property
    def work(self) -> float:
        """Total samples."""
        return float(self.epochs * EPOCH_SAMPLES)

    @property
    def change(self) -> tuple[int, int]:
        """Epoch and batch size of a scripted change: half-way, to twice the batch size."""
        return self.epochs // 2, 2 * BATCH


QUEUE = (
    QueuedJob("ada", 0.0, 1, "broad", 16),
    QueuedJob("bob", 3.0, 2, "narrow", 32),
    QueuedJob("cyd", 6.0, 1, "narrow", 18),
    QueuedJob("dot", 11.0, 1, "broad", 10),
    QueuedJob("eve", 16.0, 1, "narrow", 22),
    QueuedJob("fay", 21.0, 1, "narrow", 15),
)


@dataclass(frozen=True, slots=True)
class FidelityCase:
    """A policy with its options (numbers are times in seconds), and the changes its jobs may make.

    ``elastic`` jobs run on one or two GPUs; ``scripted`` ones double their batch size half-way; ``tuned`` ones choose
    it by goodput. ``time_scale`` is the number of simulated seconds per live second: simulated agents tune every 30 s.
    """

    policy: str
    options: tuple[tuple[str, float | str], ...]
    elastic: bool = False
    scripted: bool = False
    tuned: bool = False
    time_scale: float = 1.0

    def spec(self, time_scale: float = 1.0) -> str:
        """The policy spec, with times multiplied by ``time_scale``."""
        options = (
            (name, value if isinstance(value, str) else f"{time_scale * value:g}") for name, value in self.options
        )
        return f"{self.policy}:" + ",".join(f"{name}={value}" for name, value in options)

    def submission(self, task: QueuedJob, env: dict[str, str]) -> Submission:
        """The job as submitted to a live cluster."""
        command = [sys.executable, "-m", "shoal.research.repro.fidelity_job"]
        command += [*map(str, MODELS[task.model]), str(task.epochs)]
        limits = self._limits(task)
        return Submission(
            command=[*command, "{}:{}".format(*task.change)] if self.scripted else command,
            name=task.name,
            max_batch_size=limits[1] if limits else None,
            max_local_batch=limits[3] if limits else None,
            env=env,
            grace=30.0,
            preemptible="yes",  # as in the simulation, from its first second on
            **self._declared(task),
        )

    def job(self, task: QueuedJob, name: str, submitted: float) -> Job:
        """The job with its true values, for the simulator."""
        epoch, batch = task.change
        return Job(
            id=name,
            submitted=self.time_scale * submitted,
            limits=self._limits(task),
            batch_schedule=((float(epoch * EPOCH_SAMPLES), batch),) if self.scripted else (),
            **self._declared(task),
        )

    def _limits(self, task: QueuedJob) -> tuple[int, int, int, int] | None:
        if not (self.tuned or self.scripted):
            return None
        return BATCH, MOST_BATCH if self.tuned else task.change[1], 1, MOST_LOCAL

    def _declared(self, task: QueuedJob) -> dict[str, Any]:
        return {
            "gpus": 1 if self.elastic else task.gpus,
            "min_gpus": 1 if self.elastic else None,
            "max_gpus": 2 if self.elastic else None,
            "model": task.model,
            "work": task.work,
            "batch_size": BATCH,
            "adaptation": "gns" if self.scripted else None,
        }


CASES = (
    FidelityCase("afs-p", (("unit", 20.0),), elastic=True),
    FidelityCase(
        "pollux",
        (("interval", 10.0), ("restart", 8.0), ("when", "interval")),
        elastic=True,
        tuned=True,
        time_scale=30.0 / TUNE_EVERY,
    ),
    FidelityCase("shockwave", (("round", 20.0),), scripted=True),
    FidelityCase("gavel.max-min", (("round", 20.0),)),
)
