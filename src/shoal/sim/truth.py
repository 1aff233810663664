"""The truth of a simulation, hidden from policies: every job's work and speed, and the cost of a restart."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from shoal.core.errors import InputError
from shoal.core.topology import Placement, Topology
from shoal.core.units import Seconds
from shoal.perf.catalog import Catalog
from shoal.perf.measured_profile import MeasuredProfile
from shoal.perf.profile import Profile, ScalingProfile, Seats, StepSeconds
from shoal.workload.schema import Job

DEFAULT_RESTART_SECONDS = 30.0
"""Seconds that a restart costs a job without a figure of its own (Pollux §5.3 charges 30 s)."""


@dataclass(frozen=True, slots=True)
class RestartCost:
    """Seconds before training continues after every start but the first, and after the ``first``.

    A constant, or each job's own ``restart_seconds``, or, with a bandwidth in GB/s, the time to write a checkpoint and
    to read it back.
    """

    constant: Seconds | None = None
    gigabytes_per_second: float | None = None
    first: Seconds = 0.0

    @classmethod
    def parse(cls, text: str) -> "RestartCost":
        """Read ``SECONDS``, ``job`` or ``checkpoint:GB_PER_S``."""
        hint = "give seconds (0 or more), `job` (each job's own) or `checkpoint:GB_PER_S`"
        try:
            if text == "job":
                return cls()
            if text.startswith("checkpoint:"):
                speed = float(text.removeprefix("checkpoint:"))
                if speed > 0 and np.isfinite(speed):
                    return cls(gigabytes_per_second=speed)
            elif (seconds := float(text)) >= 0 and np.isfinite(seconds):
                return cls(constant=seconds)
        except ValueError:
            pass
        raise InputError("restart-cost", text, hint)

    def of(self, job: Job) -> Seconds:
        """Seconds that one restart costs this job."""
        if self.constant is not None:
            return self.constant
        if self.gigabytes_per_second is not None and job.checkpoint_gb is not None:
            return 2 * job.checkpoint_gb / self.gigabytes_per_second
        return DEFAULT_RESTART_SECONDS if job.restart_seconds is None else job.restart_seconds


Tunable: TypeAlias = ScalingProfile | MeasuredProfile
"""A profile with step times by batch size and with gradient noise scales."""


def seats_of(placement: Placement) -> Seats:
    """GPUs per node, in the order of the nodes."""
    return tuple(count for _, count in placement.seats)


@dataclass(slots=True)
class Truth:
    """True speed of every job of a workload on any seats of a cluster, by admission number.

    ``factors`` are the ratios of true speeds to profiles, ``node_speed`` the present speeds of nodes (1 if absent).
    """

    jobs: Sequence[Job]
    topology: Topology
    catalog: Catalog
    factors: Sequence[float]
    node_speed: dict[int, float] = field(default_factory=dict)
    network_speed: dict[int, float] = field(default_factory=dict)
    """By job, the fraction of its speed that it keeps beside gangs that share its network."""
    _profiles: dict[str, Profile] = field(default_factory=dict)

    @classmethod
    def of(
        cls, jobs: Sequence[Job], topology: Topology, catalog: Catalog, *, noise: float = 0.0, seed: int = 0
    ) -> "Truth":
        """Return the truth of a workload; with ``noise`` σ each job's speed is its profile's times e^(σ·N(0,1))."""
        draws = np.random.default_rng([seed, 1]).standard_normal(len(jobs)) if noise else np.zeros(len(jobs))
        return cls(jobs, topology, catalog, np.exp(noise * draws).tolist())

    def admit(self, number: int, job: Job, factor: float) -> None:
        """Insert a job with this admission number; the numbers of the jobs after it grow by one."""
        self.jobs = [*self.jobs[:number], job, *self.jobs[number:]]
        self.factors = [*self.factors[:number], factor, *self.factors[number:]]

    def rate(self, number: int, placement: Placement, batch_size: int | None, partner: int | None = None) -> float:
        """True work per second on these seats; a straggler slows the whole gang, a partner slows both jobs."""
        job = self.jobs[number]
        if job.model is None:
            rate = placement.gpus / job.gpus  # as `LinearProfile`
        else:
            profile = self._profile(job.model)
            kind = self.topology.kinds[self.topology.kind_of(placement)]
            if isinstance(profile, MeasuredProfile):
                rate = profile.rate_on(kind, seats_of(placement), batch_size)
            else:
                rate = profile.rate(kind, placement.gpus, self.topology.locality(placement), batch_size)
        return rate * self._pace(number, placement, partner)

    def tunable(self, number: int) -> Tunable | None:
        """A job's profile by batch size; None where its model has none."""
        model = self.jobs[number].model
        profile = None if model is None else self._profile(model)
        return profile if isinstance(profile, ScalingProfile | MeasuredProfile) else None

    def step(
        self, number: int, profile: Tunable, placement: Placement, local: int, partner: int | None
    ) -> StepSeconds | None:
        """True seconds of a pass over ``local`` samples on each of these GPUs; None where the job cannot run."""
        kind = self.topology.kinds[self.topology.kind_of(placement)]
        taken = profile.step(kind, seats_of(placement), self.topology.locality(placement), local)
        pace = self._pace(number, placement, partner)
        if taken is None or pace <= 0.0:
            return None
        return taken if pace == 1.0 else StepSeconds(taken.passing / pace, taken.step / pace)

    def _profile(self, model: str) -> Profile:
        profile = self._profiles.get(model)
        if profile is None:
            profile = self._profiles[model] = self.catalog.profile(model)
        return profile

    def _pace(self, number: int, placement: Placement, partner: int | None) -> float:
        """Ratio of a job's true speed on these seats to its profile's."""
        pace = self.factors[number]
        if self.node_speed:
            pace *= min(self.node_speed.get(node, 1.0) for node in placement.nodes)
        if self.network_speed:
            pace *= self.network_speed.get(number, 1.0)
        if partner is not None:
            pace *= self._shared(self.jobs[number], self.jobs[partner], placement.gpus)
        return pace

    def _shared(self, job: Job, other: Job, gpus: int) -> float:
        if job.model is None or other.model is None or job.batch_size is None or other.batch_size is None:
            return 0.5
        return self.catalog.colocated(job.model, job.batch_size, other.model, other.batch_size, gpus)[0]
