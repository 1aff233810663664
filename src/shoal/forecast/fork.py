"""The folded state of a cluster, live or not, as the middle of a simulation: what is known is kept, the rest is drawn.

A fork never touches the state it was made from. In its world no job arrives that was not named, none crashes, and
nodes that are down stay down.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from shoal.core.arrays import Floats
from shoal.core.events import JobReleased
from shoal.core.job import JobSpec
from shoal.core.lifecycle import JobState
from shoal.core.snapshot import Measurement, Snapshot
from shoal.core.units import Seconds
from shoal.engine.state import State
from shoal.forecast.history import WorkHistory
from shoal.perf.catalog import Catalog
from shoal.perf.profile import LinearProfile
from shoal.perf.work_prior import DECLARED_SPREAD, Basis, Known
from shoal.sim.backend import SimBackend
from shoal.sim.job_run import JobStart
from shoal.sim.truth import RestartCost, Truth
from shoal.workload.schema import Job

_ENDED = JobStart(JobState.COMPLETED)
_NO_MORE = Job(id="ended", submitted=0.0, gpus=1, work=1.0)


@dataclass(frozen=True, slots=True)
class Fork:
    """A moment from which worlds can be run on, one for each seed: ``world`` and ``state`` make what a loop needs.

    ``live`` are the admission numbers of the jobs that have not ended, those held back and those yet to come among
    them. ``jobs`` are by admission number and true but for their work, which each world draws. So are ``speeds``,
    beside each model's profile, as measured where a job has run: one that was slow here is as slow elsewhere.
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
        past: WorkHistory,
        catalog: Catalog,
        restart_cost: RestartCost,
        arrivals: Sequence[JobSpec] = (),
    ) -> "Fork":
        """A fork of a state as it is; what becomes of that state later does not change it."""
        present, everyone = _copied(state), _copied(state)
        everyone.apply_events(state.now, [JobReleased(state.now, job) for job in past.releases])
        picture = everyone.freeze()
        free = set(present.freeze().columns.rows.tolist())
        specs = (*state.register.specs, *arrivals)
        before = len(state.register.specs)
        rows = picture.columns.rows.tolist()
        live = (*rows, *range(before, len(specs)))
        standings, jobs, speeds = [_ENDED] * before, [_NO_MORE] * len(specs), [1.0] * len(specs)
        for at, number in enumerate(rows):
            standings[number] = _standing(picture, at, None if number in free else past.releases[number])
        for number in live:
            jobs[number] = _job(specs[number], catalog)
        truth = Truth(jobs, state.topology, catalog, speeds)
        for at, number in enumerate(rows):
            speed = _speed(picture, at, truth)
            if speed is None:  # it went where its model has no figures, so it is taken to be linear in its GPUs
                jobs[number] = replace(jobs[number], model=None)
                speed = _speed(picture, at, truth)
            speeds[number] = specs[number].speed if speed is None else speed
        known = _known(picture, arrivals, past.run_times)
        return cls(present, catalog, restart_cost, live, specs, tuple(standings), tuple(jobs), tuple(speeds), known)

    @property
    def now(self) -> Seconds:
        """The moment it was made."""
        return self.present.now

    @property
    def waiting(self) -> frozenset[int]:
        """The jobs that hold no GPUs now."""
        return frozenset(n for n in self.live if n >= len(self.standings) or self.standings[n].placement is None)

    @property
    def bases(self) -> dict[int, Basis]:
        """By live job, what its work is drawn from."""
        return dict(zip(self.live, self.known.bases(), strict=True))

    def state(self) -> State:
        """A state of its own to run on."""
        return _copied(self.present)

    def world(self, seed: int, spread: float = DECLARED_SPREAD) -> SimBackend:
        """A world in which this seed says how much work each job really has."""
        jobs, topology = list(self.jobs), self.present.topology
        for number, work in zip(self.live, self.known.draw(seed, spread).tolist(), strict=True):
            declared = self.specs[number].batch_schedule if jobs[number].model is not None else ()
            script = tuple(change for change in declared if change[0] < work)
            jobs[number] = replace(jobs[number], work=work, batch_schedule=script)
        truth, down = Truth(jobs, topology, self.catalog, self.speeds), topology.down
        return SimBackend(truth, self.specs, self.restart_cost, now=self.now, standings=self.standings, down=down)


def _copied(state: State) -> State:
    """A state of its own; values that nobody changes are shared, for there may be very many of them."""
    register = state.register
    values = (*register.specs, *register.placements, *register.measurements)
    shared = (state.topology, state.perf, state.carry, *values)
    return deepcopy(state, {id(value): value for value in shared})


def _standing(picture: Snapshot, at: int, release: Seconds | None) -> JobStart:
    columns = picture.columns
    partner = int(columns.partner[at])
    return JobStart(
        state=JobState(int(columns.state[at])) if release is None else JobState.HELD,
        done=float(columns.done[at]),
        batch_size=int(columns.batch_size[at]) or None,
        incarnation=int(columns.incarnation[at]),
        placement=picture.placement(at),
        partner=partner if partner >= 0 else None,
        since=float(columns.since[at]) if release is None else release,
        rate=float(columns.rate[at]),
        report=picture.report(at),
    )


def _job(spec: JobSpec, catalog: Catalog) -> Job:
    """The truth of a job but for its work, for which 1 stands; a model unknown to the catalogue says nothing."""
    model = spec.model if spec.model in catalog.models else None
    return Job(id=spec.id, submitted=spec.submitted, gpus=spec.gpus, work=1.0, model=model, batch_size=spec.batch_size)


def _speed(picture: Snapshot, at: int, truth: Truth) -> float | None:
    """A job's speed beside its profile: as it goes now, else as last measured, else as it claims.

    None when it was measured where its profile has no figures. One whose batch size is adapted is taken to be as fast
    as it claims: its rate rests on how noisy its gradients are now, which no profile need have right.
    """
    columns, number = picture.columns, int(picture.columns.rows[at])
    if picture.report(at) is not None and truth.tunable(number) is not None:
        return picture.specs[at].speed
    rate, seats, measured = float(columns.rate[at]), picture.placement(at), picture.measurements(at)
    if seats is not None and rate > 0:
        expected = truth.rate(number, seats, int(columns.batch_size[at]) or None, _company(picture, at))
    elif measured and measured[0].rate > 0:
        rate, expected = measured[0].rate, _by_profile(truth, number, measured[0])
    else:
        return picture.specs[at].speed
    return rate / expected if expected > 0 else None


def _company(picture: Snapshot, at: int) -> int | None:
    """The job it shares its GPUs with, once that one runs: until then nobody has measured the two together."""
    partner = int(picture.columns.partner[at])
    found = picture.position_of(partner) if partner >= 0 else -1
    return partner if found >= 0 and picture.columns.state[found] == JobState.RUNNING else None


def _by_profile(truth: Truth, number: int, seen: Measurement) -> float:
    job = truth.jobs[number]
    profile = LinearProfile(job.gpus) if job.model is None else truth.catalog.profile(job.model)
    return profile.rate(truth.topology.kinds[seen.kind], seen.gpus, seen.locality, seen.batch_size or None)


def _known(picture: Snapshot, arrivals: Sequence[JobSpec], run_times: Floats) -> Known:
    columns, perf = picture.columns, picture.perf
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
        run_times,
    )
