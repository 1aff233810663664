"""Forks of a cluster's folded state, live or simulated, from which simulations start; unknown work is drawn at random.

A fork never changes the state it was made from. In its simulations no job arrives that was not named, none crashes,
nodes that are down stay down, jobs that are set aside stay so, and the runs of cancelled jobs end at once.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from dataclasses import replace as replace_standing
from math import inf

import numpy as np
from msgspec.structs import replace

from shoal.core.events import JobCancelled, JobReleased, JobSetAside
from shoal.core.job import JobSpec
from shoal.core.lifecycle import JobState
from shoal.core.snapshot import Measurement, Snapshot
from shoal.core.units import Seconds
from shoal.engine.state import State
from shoal.perf.catalog import Catalog
from shoal.perf.length_history import LengthHistory
from shoal.perf.length_table import DRAWN
from shoal.perf.profile import LinearProfile
from shoal.perf.work_prior import DECLARED_SPREAD, Basis, Known
from shoal.sim.backend import SimulatedBackend
from shoal.sim.job_run import JobStart
from shoal.sim.truth import RestartCost, Truth
from shoal.workload.schema import Job

_ENDED = JobStart(JobState.COMPLETED)
_NO_MORE = Job(id="ended", submitted=0.0, gpus=1, work=1.0)


@dataclass(frozen=True, slots=True)
class Fork:
    """A moment from which simulations run on, one for each seed; ``world`` and ``state`` give a loop its parts.

    ``live`` are the admission numbers of the jobs that have not ended, including those held back and those still to
    arrive. By admission number: ``jobs``, complete but for their work, which each simulation draws, and ``speeds``, the
    ratios of measured speeds to profiles, which hold on other GPUs as well.
    """

    present: State
    catalog: Catalog
    restart_cost: RestartCost
    live: tuple[int, ...]
    specs: tuple[JobSpec, ...]
    standings: tuple[JobStart, ...]
    jobs: tuple[Job, ...]
    speeds: tuple[float, ...]
    known: Known

    @classmethod
    def of(
        cls,
        state: State,
        catalog: Catalog,
        restart_cost: RestartCost,
        arrivals: Sequence[JobSpec] = (),
    ) -> "Fork":
        """Return a fork of a state as it is; later changes of that state do not affect it."""
        present, everyone = _copied(state), _copied(state)
        aside = state.freeze().set_aside.values()  # the policy fails on these jobs, which would end every simulation
        present.apply_events(state.now, [JobSetAside(e.at, e.job, e.reason, inf) for e in aside])
        present.apply_events(state.now, [JobCancelled(state.now, job) for job in sorted(state.cancelling)])
        everyone.apply_events(state.now, [JobReleased(state.now, job) for job in state.held])
        snapshot = everyone.freeze()
        free = set(present.freeze().columns.rows.tolist())
        specs = (*state.register.specs.values(), *arrivals)
        before = len(state.register.specs)
        rows = snapshot.columns.rows.tolist()
        live = (*rows, *range(before, len(specs)))
        standings, jobs, speeds = [_ENDED] * before, [_NO_MORE] * len(specs), [1.0] * len(specs)
        for at, number in enumerate(rows):
            release = None if number in free else state.releases.get(number, inf)
            standings[number] = replace_standing(_standing(snapshot, at, release), on_hold=number in state.on_hold)
        for number in live:
            jobs[number] = _job(specs[number], catalog)
        truth = Truth(jobs, state.topology, catalog, speeds)
        for at, number in enumerate(rows):
            speed = _speed(snapshot, at, truth)
            if speed is None:  # it ran where its model has no figures: assume a speed linear in its GPUs
                jobs[number] = replace(jobs[number], model=None)
                speed = _speed(snapshot, at, truth)
            speeds[number] = specs[number].speed if speed is None else speed
        known = _known(snapshot, arrivals, everyone.lengths)
        return cls(present, catalog, restart_cost, live, specs, tuple(standings), tuple(jobs), tuple(speeds), known)

    @property
    def now(self) -> Seconds:
        """The time of the fork in seconds."""
        return self.present.now

    @property
    def waiting(self) -> frozenset[int]:
        """The jobs that hold no GPUs now."""
        return frozenset(n for n in self.live if n >= len(self.standings) or self.standings[n].placement is None)

    @property
    def bases(self) -> dict[int, Basis]:
        """By live job, the basis of its drawn work."""
        return dict(zip(self.live, self.known.bases(), strict=True))

    def state(self) -> State:
        """Return a copy of the state to run on."""
        return _copied(self.present)

    def world(self, seed: int, spread: float = DECLARED_SPREAD) -> SimulatedBackend:
        """Return a simulation in which this seed draws the total work of each job."""
        jobs, topology = list(self.jobs), self.present.topology
        for number, work in zip(self.live, self.known.draw(seed, spread).tolist(), strict=True):
            declared = self.specs[number].batch_schedule if jobs[number].model is not None else ()
            script = tuple(change for change in declared if change[0] < work)
            jobs[number] = replace(jobs[number], work=work, batch_schedule=script)
        truth, down = Truth(jobs, topology, self.catalog, self.speeds), topology.down
        return SimulatedBackend(truth, self.specs, self.restart_cost, now=self.now, standings=self.standings, down=down)


def _copied(state: State) -> State:
    """A copy of a state; immutable values are shared, since there may be very many of them."""
    register = state.register
    values = (*register.specs.values(), *register.placements, *register.measurements)
    shared = (state.topology, state.perf, state.carry, *values)
    return deepcopy(state, {id(value): value for value in shared})


def _standing(snapshot: Snapshot, at: int, release: Seconds | None) -> JobStart:
    columns = snapshot.columns
    partner = int(columns.partner[at])
    return JobStart(
        state=JobState(int(columns.state[at])) if release is None else JobState.HELD,
        done=float(columns.done[at]),
        batch_size=int(columns.batch_size[at]) or None,
        incarnation=int(columns.incarnation[at]),
        placement=snapshot.placement(at),
        partner=partner if partner >= 0 else None,
        since=float(columns.since[at]) if release is None else release,
        rate=float(columns.rate[at]),
        report=snapshot.report(at),
        bound=snapshot.jobs.at(at).bound_to,
    )


def _job(spec: JobSpec, catalog: Catalog) -> Job:
    """A job from its spec, with work 1 for now, and without a model that the catalogue does not know."""
    model = spec.model if spec.model in catalog.models else None
    return Job(
        id=spec.id,
        submitted=spec.submitted,
        gpus=spec.gpus,
        work=1.0,
        model=model,
        batch_size=spec.batch_size,
        preemptible=spec.preemptible,
    )


def _speed(snapshot: Snapshot, at: int, truth: Truth) -> float | None:
    """Ratio of a job's speed to its profile: from its present rate, else its last measured one, else as declared.

    None where it was measured on seats without figures in its profile. An adaptive job counts as fast as declared: its
    rate depends on its present noise scale, which the profile need not have right.
    """
    columns, number = snapshot.columns, int(snapshot.columns.rows[at])
    if snapshot.report(at) is not None and truth.tunable(number) is not None:
        return snapshot.specs[at].speed
    rate, seats, measured = float(columns.rate[at]), snapshot.placement(at), snapshot.measurements(at)
    if seats is not None and rate > 0:
        expected = truth.rate(number, seats, int(columns.batch_size[at]) or None, _partner(snapshot, at))
    elif measured and measured[0].rate > 0:
        rate, expected = measured[0].rate, _by_profile(truth, number, measured[0])
    else:
        return snapshot.specs[at].speed
    return rate / expected if expected > 0 else None


def _partner(snapshot: Snapshot, at: int) -> int | None:
    """Return the number of the job that shares its GPUs; None if no running job does."""
    partner = int(snapshot.columns.partner[at])
    found = snapshot.position_of(partner) if partner >= 0 else -1
    return partner if found >= 0 and snapshot.columns.state[found] == JobState.RUNNING else None


def _by_profile(truth: Truth, number: int, seen: Measurement) -> float:
    job = truth.jobs[number]
    profile = LinearProfile(job.gpus) if job.model is None else truth.catalog.profile(job.model)
    return profile.rate(truth.topology.kinds[seen.kind], seen.gpus, seen.locality, seen.batch_size or None)


def _known(snapshot: Snapshot, arrivals: Sequence[JobSpec], lengths: LengthHistory) -> Known:
    columns, perf = snapshot.columns, snapshot.perf
    places = list(zip(columns.length_class.tolist(), columns.length_scale.tolist(), columns.done.tolist(), strict=True))
    places += [(*lengths.place(spec, perf.speeds(spec)), 0.0) for spec in arrivals]
    unknown = np.full(len(DRAWN), np.nan)
    predicted = [lengths.spread(number, scale, done) if number >= 0 else unknown for number, scale, done in places]
    usual = np.where(columns.rate > 0, columns.rate, columns.best_speed)
    later = [float(perf.speeds(spec).max(initial=0.0)) for spec in arrivals]
    declared = [np.inf if spec.work is None else spec.work for spec in arrivals]
    rate = np.concatenate([usual, later])
    nothing = np.zeros(len(arrivals))
    return Known(
        np.concatenate([columns.work, declared]),
        np.concatenate([columns.done, nothing]),
        np.concatenate([columns.run_seconds, nothing]),
        np.where(rate > 0, rate, 1.0),
        np.array(predicted).reshape(-1, len(DRAWN)),
    )
