"""Agents of jobs in the simulated world: what they find out, what they choose, what they report, and when."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from shoal.core.batch_limits import BatchLimits
from shoal.core.commands import Resize, Start
from shoal.core.decision import Decision, Grant, Verdicts
from shoal.core.events import BatchChanged, JobProfiled, JobStarted
from shoal.core.job import ADAPTIVE, BatchSetting
from shoal.core.lifecycle import JobState
from shoal.core.reasons import FITS, Reason
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Locality, Placement, parse_cluster
from shoal.perf.batch_tuner import TICK
from shoal.perf.catalog import catalog
from shoal.perf.goodput import best, efficiency
from shoal.perf.profile import ScalingProfile
from shoal.sim.backend import SimulatedBackend
from shoal.sim.job_run import JobStart
from shoal.sim.truth import RestartCost, Truth
from shoal.testing.builders import SimulationLog, job, simulate
from shoal.workload.schema import Job

LIMITS = (128, 4096, 32, 4096)
INF = float("inf")


def training(name: str = "a", **more: Any) -> Job:
    fields: dict[str, Any] = {"model": "cifar10", "batch_size": 512, "limits": LIMITS, "work": 5e6}
    return job(name, gpus=2, min_gpus=1, max_gpus=16, **{**fields, **more})


@dataclass(frozen=True)
class Doubling:
    """Everyone gets an adaptive batch and, at each review, twice the GPUs it was measured on, up to ``most``."""

    most: int = 16
    batch: BatchSetting | None = ADAPTIVE
    every: float = 120.0

    def decide(self, snapshot: Snapshot) -> Decision:
        granted = {}
        for name, seen in snapshot.jobs.items():
            known = seen.report
            gpus = min(2 * known.seen_gpus, self.most) if known is not None else 1
            granted[name] = Grant(gpus=gpus, batch=self.batch, reason=Reason(FITS, (1, 1)))
        return Decision(Verdicts.of(snapshot, granted), snapshot.now + self.every)


def profiled(run: SimulationLog) -> list[JobProfiled]:
    return [event for event in run.events if isinstance(event, JobProfiled)]


def _scaling(model: str) -> ScalingProfile:
    profile = catalog().profile(model)
    assert isinstance(profile, ScalingProfile)
    return profile


CIFAR10 = _scaling("cifar10")


def test_an_agent_explores_from_one_gpu_and_each_new_number_of_gpus_is_loud() -> None:
    run = simulate(Doubling(), [training()], "t4:4x4")
    told = profiled(run)
    assert [event.report.seen_gpus for event in told if event.urgent] == [1, 2, 4, 8, 16]
    started = {e.incarnation: e.at for e in run.events if isinstance(e, JobStarted)}
    for event in told:
        assert (event.at - started[event.incarnation]) % TICK == pytest.approx(0.0, abs=1e-6)
    assert set(run.completed) == {"a"}


def test_the_batch_is_the_best_by_the_agents_own_fit_and_the_rate_is_the_true_goodput() -> None:
    run = simulate(Doubling(), [training()], "t4:4x4")
    seated = {c.incarnation: c.placement.gpus for _, c in run.commands if isinstance(c, Start | Resize)}
    for event in profiled(run):
        report, batch, gpus = event.report, event.report.batch, seated[event.incarnation]
        locality = Locality.SAME_NODE if gpus <= 4 else Locality.CROSS_NODE
        local = batch.size // gpus // (batch.accumulation + 1)
        noise = CIFAR10.noise_scale(event.done / 5e6)
        taken = CIFAR10.times["t4"].step(gpus, locality, local)
        samples = batch.size / (taken.step + batch.accumulation * taken.passing)
        assert event.rate == pytest.approx(samples * float(efficiency(noise, 128, batch.size)))
        assert report.noise == pytest.approx(noise, rel=0.06)
        # The choice is made anew only when the noise scale has moved by a tenth, within which the best is flat.
        found = best(report.fits[0][1], BatchLimits(*LIMITS), report.noise, np.array([gpus]), np.array([locality]))
        assert found.local[0] * gpus * (found.accumulation[0] + 1) == pytest.approx(batch.size, rel=0.12)


def test_what_was_seen_is_fitted_as_it_is() -> None:
    last = profiled(simulate(Doubling(), [training()], "t4:4x4"))[-1].report
    ((kind, fit),) = last.fits
    assert (kind, fit.gpus, fit.nodes) == ("t4", 16, 4)
    assert fit.error < 0.01
    times = CIFAR10.times["t4"]
    assert fit.compute == pytest.approx(times.compute, rel=0.05)


def test_an_adaptive_batch_does_the_same_work_sooner_than_a_fixed_one() -> None:
    rows = [training()]
    fixed = simulate(Doubling(most=1, batch=None), rows, "t4:1x4").completed["a"]
    adaptive = simulate(Doubling(most=1), rows, "t4:1x4").completed["a"]
    assert adaptive < fixed


PLAIN = {
    "a job without limits": training(limits=None),
    "a model that is known at one speed only": training(
        model="ResNet-18", batch_size=32, kinds=("v100",), limits=(16, 256, 1, 256)
    ),
}


@pytest.mark.parametrize("row", PLAIN.values(), ids=PLAIN.keys())
def test_granted_an_adaptive_batch_in_vain_a_job_trains_at_its_declared_one(row: Job) -> None:
    cluster = "v100:1x4" if row.kinds else "t4:1x4"
    adaptive = simulate(Doubling(), [row], cluster)
    assert profiled(adaptive) == []
    assert adaptive.completed == simulate(Doubling(batch=None), [row], cluster).completed


def test_an_owners_script_rests_while_the_agent_chooses() -> None:
    row = training(batch_schedule=((1e6, 1024),))
    assert not [e for e in simulate(Doubling(), [row], "t4:4x4").events if isinstance(e, BatchChanged)]
    assert [e for e in simulate(Doubling(batch=None), [row], "t4:4x4").events if isinstance(e, BatchChanged)]


def test_kinds_never_tried_are_reported_with_what_was_seen_on_another() -> None:
    cluster = parse_cluster("t4:2x4,a100:1x4")
    (seen,) = [e.report for e in profiled(simulate(Doubling(most=2), [training(kinds=("a100",))], cluster))][-1:]
    assert [kind for kind, _ in seen.fits] == ["a100"], "a kind the job may not use is nobody's business"
    reports = [e.report for e in profiled(simulate(Doubling(most=2), [training()], cluster))]
    fits = dict(reports[-1].fits)
    tried, other = ("a100", "t4") if fits["a100"].gpus else ("t4", "a100")
    assert (fits[tried].gpus, fits[other].gpus) == (2, 0)
    assert (fits["t4"].compute[1] > fits["a100"].compute[1], fits[other].most_local) == (
        True,
        CIFAR10.most_local(other),
    )


def test_noisy_measurements_are_averaged_and_equal_seeds_measure_alike() -> None:
    def world(seed: int) -> list[JobProfiled]:
        return profiled(simulate(Doubling(most=2), [training()], "t4:1x4", seed=seed, measurement_noise=0.1))

    first, again, other = world(1), world(1), world(2)
    assert first == again
    assert [e.report for e in first] != [e.report for e in other]
    fit = dict(first[-1].report.fits)["t4"]
    assert fit.compute[0] + fit.compute[1] * 128 == pytest.approx(CIFAR10.times["t4"].pass_seconds(128), rel=0.1)


def test_equal_runs_with_agents_give_equal_bytes() -> None:
    one, two = (simulate(Doubling(), [training("a"), training("b", submitted=50.0)], "t4:4x4") for _ in range(2))
    assert list(one.journal.raw()) == list(two.journal.raw())


def test_a_world_that_begins_in_the_middle_goes_on_from_what_was_reported() -> None:
    row, cluster = training(), parse_cluster("t4:4x4")
    before = profiled(simulate(Doubling(), [row], cluster))[-1]
    seats = Placement(((0, 4), (1, 4), (2, 4), (3, 4)))
    standing = JobStart(JobState.RUNNING, before.done, 512, 9, seats, report=before.report)
    world = SimulatedBackend(Truth.of([row], cluster, catalog()), [row.spec()], RestartCost(0.0), standings=[standing])
    heard = world.wait(INF)
    first = heard.events[0]
    assert getattr(first, "rate", 0.0) == pytest.approx(before.rate, rel=0.02)
    assert not [e for e in heard.events if isinstance(e, JobProfiled) and e.urgent]
