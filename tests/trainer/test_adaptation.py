"""What follows from measurements: learning rates, batch sizes by rule, and the batch that trains fastest."""

from collections.abc import Sequence

import numpy as np
import pytest

from shoal.core.batch_limits import BatchLimits
from shoal.core.errors import InputError
from shoal.core.goodput import StepFit
from shoal.core.job import BatchSetting
from shoal.core.topology import Placement, parse_cluster
from shoal.perf.batch_tuner import BatchTuner, Reading, Update
from shoal.perf.catalog import catalog
from shoal.perf.goodput import best, iteration_seconds
from shoal.perf.noise import NoiseEstimate, NoiseScale
from shoal.sim.adaptive_jobs import AdaptiveJobs, TickResult, TunerOptions
from shoal.sim.job_run import JobRun
from shoal.sim.truth import Truth
from shoal.trainer.learning_rate import RULES, BatchScaling, Legw, rule_of
from shoal.trainer.schedules import Accordion, BatchSchedule, EpochSummary, NoiseDoubling, ScheduleState, Scripted
from shoal.trainer.tuner import RunTuner
from shoal.workload.schema import Job


@pytest.mark.parametrize(
    ("rule", "noise", "epochs", "factor"),
    [
        ("linear", 10.0, 9.0, 4.0),
        ("sqrt", 10.0, 9.0, 2.0),
        ("adascale", 0.0, 9.0, 1.0),
        ("adascale", 1e12, 9.0, 4.0),
        ("adascale", 64.0, 9.0, 1.6),
        ("legw", 10.0, 9.0, 2.0),
        ("legw", 10.0, 1.0, 0.5),
        (Legw(warm_up=0), 10.0, 0.0, 2.0),
        (lambda at: at.noise, 7.0, 0.0, 7.0),
    ],
)
def test_a_learning_rate_follows_a_batch_four_times_as_large(
    rule: object, noise: float, epochs: float, factor: float
) -> None:
    assert callable(rule) or isinstance(rule, str)
    assert rule_of(rule)(BatchScaling(64, 256, noise, epochs)) == pytest.approx(factor, rel=1e-9)


def test_at_the_initial_batch_every_rule_leaves_the_rate_alone() -> None:
    assert {rule(BatchScaling(64, 64, 33.0, 0.5)) for rule in RULES.values()} == {1.0}
    with pytest.raises(InputError, match="did you mean adascale"):
        rule_of("adascal")


def played(schedule: BatchSchedule, epochs: Sequence[tuple[float, float, float]], batch: int) -> list[int]:
    """The batch size after each epoch, of which noise scale, gradient norm and learning rate are given."""
    memory: ScheduleState = {}
    chosen = []
    for number, seen in enumerate(epochs, start=1):
        batch, memory = schedule.next(EpochSummary(number, batch, *seen), memory)
        chosen.append(batch)
    return chosen


def test_batch_sizes_follow_their_rules() -> None:
    noises = [(noise, 1.0, 0.1) for noise in (50, 70, 300, 90, 9000)]
    assert played(NoiseDoubling(most=512), noises, 32) == [32, 64, 256, 256, 512]
    assert played(Scripted(((2, 64), (4, 128))), noises, 32) == [32, 64, 64, 128, 128]
    norms = [(0.0, norm, rate) for norm, rate in ((9, 0.1), (4, 0.1), (3.9, 0.1), (3.8, 0.1), (3.8, 0.01), (3.8, 0.01))]
    assert played(Accordion(32, 256), norms, 32) == [32, 32, 256, 256, 32, 256]
    assert played(Accordion(32, 256, every=3), norms, 32) == [32, 32, 32, 32, 32, 32]


TRUTH = StepFit((0.01, 0.0005), (0.004, 0.001), (0.01, 0.001), (0.01, 0.001), 2.0, 256)
LIMITS = BatchLimits(64, 2048, 8, 256)


def tuner(gpus: int) -> RunTuner:
    return RunTuner.of(LIMITS, "gpu", gpus, 1)


def trained(of: RunTuner, gpus: int, noise: float, ticks: int = 6) -> BatchSetting:
    """Let a job run and tune itself, its times being the truth's."""
    now, local = of.chosen
    for _ in range(ticks):
        for _ in range(25):
            passing = TRUTH.compute[0] + TRUTH.compute[1] * local
            of.add_step(local, passing, float(iteration_seconds(TRUTH, local, 0, gpus, 0)))
            of.add_noise(NoiseEstimate(1.0, noise), now.size)
        now, local = of.tick(now.size)
    return now


@pytest.mark.parametrize("gpus", [1, 3, 4])
@pytest.mark.parametrize("noise", [50.0, 3000.0])
def test_a_job_that_tunes_itself_comes_near_the_best_batch_it_could_have(gpus: int, noise: float) -> None:
    job = tuner(gpus)
    now = trained(job, gpus, noise)
    wanted = best(TRUTH, LIMITS, noise, np.array([gpus]), np.array([0]))
    reached = now.size / float(
        iteration_seconds(TRUTH, -(-now.size // (gpus * (now.accumulation + 1))), now.accumulation, gpus, 0)
    )
    reached *= (noise + 64) / (noise + now.size)
    assert LIMITS.initial <= now.size <= LIMITS.most
    assert reached > 0.93 * wanted.goodput[0]
    assert job.noise.samples == pytest.approx(noise)


def test_what_a_job_has_learned_outlives_a_restart_on_other_gpus() -> None:
    job = tuner(2)
    now = trained(job, 2, 500.0)
    other = tuner(4)
    other.restore(job.state())
    report = other.report(now)
    assert report is not None
    assert report["seen_gpus"] == 2
    [(kind, fit)] = report["fits"]
    assert kind == "gpu"
    assert fit["compute"] == pytest.approx(TRUTH.compute, rel=1e-3)
    chosen, local = other.chosen
    assert chosen.size == 4 * local * (chosen.accumulation + 1)
    assert chosen.size > LIMITS.initial
    assert tuner(1).report(now) is None


def test_a_settled_job_keeps_its_batch_and_its_report_until_its_noise_scale_moves() -> None:
    job = tuner(1)
    settled = trained(job, 1, 500.0, ticks=12)
    report = job.report(settled)
    assert trained(job, 1, 510.0, ticks=3) == settled
    assert job.report(settled) is report
    later = trained(job, 1, 2000.0, ticks=20)
    assert later.size > settled.size
    fresh = job.report(later)
    assert fresh is not None
    assert fresh["noise"] == pytest.approx(2000.0, rel=0.1)


ODD = {"no gradient": NoiseEstimate(-1.0, 500.0), "no noise": NoiseEstimate(1.0, -500.0)}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_a_noise_scale_without_bound_counts_only_as_a_larger_or_smaller_one(odd: NoiseEstimate) -> None:
    fresh = tuner(1)
    fresh.add_noise(odd, 64)
    assert fresh.tick(64)[0] == BatchSetting(64), "unknown until a proper one was measured"
    job = tuner(1)
    settled = trained(job, 1, 500.0)
    job.noise = NoiseScale()
    job.add_noise(odd, settled.size)
    job.tick(settled.size)
    assert 500.0 / 1.4 < job.tuner.noise < 500.0 * 1.4


class RecordingTuner(BatchTuner):
    """Keeps the readings it is given."""

    def update(self, reading: Reading) -> Update:
        self.readings = [*getattr(self, "readings", ()), reading]
        return super().update(reading)


def test_a_simulated_job_and_a_run_with_the_same_measurements_choose_and_report_alike() -> None:
    row = Job(id="a", submitted=0.0, gpus=2, work=5e6, model="cifar10", batch_size=128, limits=(128, 4096, 32, 256))
    truth = Truth.of([row], parse_cluster("t4:1x4"), catalog())
    adaptive = AdaptiveJobs(truth, 0.05, np.random.default_rng(0), TunerOptions())
    simulated = JobRun(rate=2000.0, placement=Placement(((0, 2),)))
    adaptive.adapt(0, simulated, row.spec())
    assert simulated.tuner is not None
    job = simulated.tuner = RecordingTuner(simulated.tuner.limits, simulated.tuner.probes, noisy=True)
    adaptive.allocate(simulated)
    run = RunTuner.of(job.limits, "t4", 2, 1)
    sizes = set()
    for tick in range(1, 60):
        before = run.report(run.chosen[0])
        result = adaptive.tick(0, simulated, None, 30.0 * tick)
        reading = job.readings[-1]
        assert reading.times is not None
        for _ in range(20):
            run.add_step(reading.local, reading.times.passing, reading.times.step)
        run.noise = NoiseScale()
        run.add_noise(NoiseEstimate(1.0, reading.noise), reading.batch)
        chosen, local = run.tick(reading.batch)
        assert (chosen, local) == (job.batch, job.local)
        sizes.add(chosen.size)
        if result is TickResult.NONE or result is TickResult.RATE:
            assert run.report(chosen) is before
            continue
        mine, theirs = run.report(chosen), job.report()
        assert mine is not None
        assert mine is not before
        assert (mine["noise"], mine["seen_gpus"]) == (pytest.approx(theirs.noise), theirs.seen_gpus)
        assert mine["fits"][0][1]["compute"] == pytest.approx(theirs.fits[0][1].compute)
    assert len(sizes) > 2
