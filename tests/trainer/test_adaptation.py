"""What follows from measurements: learning rates, batch sizes by rule, and the batch that trains fastest."""

from collections.abc import Sequence
from math import sqrt

import numpy as np
import pytest

from shoal.core.errors import InputError
from shoal.core.goodput import StepFit
from shoal.core.job import BatchLimits, BatchSetting
from shoal.perf.goodput import best, iteration_seconds
from shoal.perf.noise import NoiseEstimate
from shoal.trainer.learning_rate import RULES, BatchScaling, Legw, rule_of
from shoal.trainer.schedules import Accordion, BatchSchedule, EpochSummary, NoiseDoubling, ScheduleState, Scripted
from shoal.trainer.tuner import BatchTuner


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


def tuner(gpus: int) -> BatchTuner:
    return BatchTuner(LIMITS, "gpu", gpus, 1)


def trained(of: BatchTuner, noise: float, now: BatchSetting, rounds: int = 6) -> BatchSetting:
    """Let a job run and tune itself, its times being the truth's."""
    for _ in range(rounds):
        local = -(-now.size // (of.gpus * (now.accumulation + 1)))
        for _ in range(25):
            passing = TRUTH.compute[0] + TRUTH.compute[1] * local
            of.timed(local, passing, float(iteration_seconds(TRUTH, local, 0, of.gpus, 0)))
            of.heard(NoiseEstimate(1.0, noise), now.size)
        now, _ = of.choose(now)
    return now


@pytest.mark.parametrize("gpus", [1, 4])
@pytest.mark.parametrize("noise", [50.0, 3000.0])
def test_a_job_that_tunes_itself_comes_near_the_best_batch_it_could_have(gpus: int, noise: float) -> None:
    job = tuner(gpus)
    now = trained(job, noise, BatchSetting(64))
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
    now = trained(job, 500.0, BatchSetting(64))
    other = tuner(4)
    other.restore(job.state())
    report = other.report(now)
    assert report is not None
    assert report.seen_gpus == 2
    [(kind, fit)] = report.fits
    assert kind == "gpu"
    assert fit.compute == pytest.approx(TRUTH.compute, rel=1e-3)
    chosen, local = other.choose(BatchSetting(64))
    assert chosen.size == 4 * local * (chosen.accumulation + 1)
    assert tuner(1).report(now) is None


def test_a_gain_not_worth_the_change_changes_nothing() -> None:
    job = tuner(1)
    settled = trained(job, 500.0, BatchSetting(64))
    near = BatchSetting(settled.size + 1)
    assert job.choose(near)[0] == near
    assert sqrt(job.noise.samples) == pytest.approx(sqrt(500.0))
