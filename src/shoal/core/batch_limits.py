"""Limits of a job's batch size, in a module of its own: the trainer library imports it, and little else."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """The limits within which a job's batch size may be adapted, in samples.

    ``initial`` is the total batch the job's learning rate was tuned for, at which a sample counts as one effective
    sample; ``most`` is the largest total batch; a GPU takes from ``least_local`` to ``most_local`` samples in one pass.
    """

    initial: int
    most: int
    least_local: int
    most_local: int
