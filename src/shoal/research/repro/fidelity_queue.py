"""The queue of the fidelity table: six jobs, the GPUs they are for, and how each of four policies is asked to run them.

Nothing here imports a framework: the jobs read it too.
"""

import sys
from dataclasses import dataclass

from shoal.wire.messages import Submission
from shoal.workload.schema import Job

CLUSTER, KIND = "gpu:1x4", "gpu"

BATCH, MOST_BATCH, MOST_LOCAL = 64, 256, 128
"""Samples a step at first, at most where it is adapted, and at most on a GPU at once."""

EPOCH_SAMPLES = 1024

TUNE_EVERY = 3.0
"""Seconds between two looks of a job at its own batch size, where it may choose it."""

START_SECONDS = 8.0
"""From the start of a job's processes to its first step, as if more than PyTorch had to be loaded."""

MODELS = {"narrow": (0.04, 0.0006), "broad": (0.06, 0.001)}
"""Seconds of a pass, and of each sample in it: by how much the jobs' steps are drawn out."""


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """A job of the queue: when it comes, on how many GPUs it runs (an elastic one on up to two), and what it trains."""

    name: str
    at: float
    gpus: int
    model: str
    epochs: int

    @property
    def work(self) -> float:
        """Samples in all."""
        return float(self.epochs * EPOCH_SAMPLES)

    @property
    def change(self) -> tuple[int, int]:
        """From which epoch on it trains at which batch, where its script changes it: half-way, twice as large."""
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
    """A policy with its times in seconds and its other options in words, and what its jobs may do.

    ``elastic`` ones run on one or two GPUs, ``scripted`` ones change their batch half-way by themselves, those that are
    ``tuned`` whenever it pays. ``slower`` is how many seconds of the simulator are one here: agents there look at
    their batch every 30 s.
    """

    policy: str
    options: tuple[tuple[str, float | str], ...]
    elastic: bool = False
    scripted: bool = False
    tuned: bool = False
    slower: float = 1.0

    def spec(self, slower: float = 1.0) -> str:
        """The policy as one writes it."""
        said = ((name, value if isinstance(value, str) else f"{slower * value:g}") for name, value in self.options)
        return f"{self.policy}:" + ",".join(f"{name}={value}" for name, value in said)

    def submission(self, task: QueuedJob, env: dict[str, str]) -> Submission:
        """The job as it is submitted to a live cluster."""
        fixed, per_sample = MODELS[task.model]
        command = [
            sys.executable,
            "-m",
            "shoal.research.repro.fidelity_job",
            str(fixed),
            str(per_sample),
            str(task.epochs),
        ]
        most = MOST_BATCH if self.tuned else task.change[1]
        return Submission(
            command=[*command, "{}:{}".format(*task.change)] if self.scripted else command,
            name=task.name,
            gpus=1 if self.elastic else task.gpus,
            min_gpus=1 if self.elastic else None,
            max_gpus=2 if self.elastic else None,
            model=task.model,
            work=task.work,
            batch_size=BATCH,
            max_batch_size=most if self.tuned or self.scripted else None,
            max_local_batch=MOST_LOCAL if self.tuned or self.scripted else None,
            adaptation="gns" if self.scripted else None,
            env=env,
            grace=30.0,
        )

    def job(self, task: QueuedJob, name: str, submitted: float) -> Job:
        """The same as it really is, for the simulator."""
        most = MOST_BATCH if self.tuned else task.change[1]
        epoch, batch = task.change
        return Job(
            id=name,
            submitted=self.slower * submitted,
            gpus=1 if self.elastic else task.gpus,
            min_gpus=1 if self.elastic else None,
            max_gpus=2 if self.elastic else None,
            model=task.model,
            work=task.work,
            batch_size=BATCH,
            limits=(BATCH, most, 1, MOST_LOCAL) if self.tuned or self.scripted else None,
            adaptation="gns" if self.scripted else None,
            batch_schedule=((float(epoch * EPOCH_SAMPLES), batch),) if self.scripted else (),
        )


TRIALS = (
    FidelityCase("afs-p", (("unit", 20.0),), elastic=True),
    FidelityCase(
        "pollux",
        (("interval", 10.0), ("restart", 8.0), ("when", "interval")),
        elastic=True,
        tuned=True,
        slower=30.0 / TUNE_EVERY,
    ),
    FidelityCase("shockwave", (("round", 20.0),), scripted=True),
    FidelityCase("gavel.max-min", (("round", 20.0),)),
)
