"""Forecasts of jobs that change their batch size: regimes, speeds, spreads, and how good they are on public jobs."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.commands import Start
from shoal.core.events import BatchChanged, JobStarted, JobSubmitted
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement, parse_cluster
from shoal.engine.state import State
from shoal.perf.adaptation import RULES, RegimeForecast, forecast, sizes
from shoal.perf.catalog import catalog
from shoal.perf.model import OnlineModel, ProfiledModel
from shoal.research.repro.shockwave import PROGRESS, prediction_errors
from shoal.testing.builders import job, snapshot
from shoal.workload.schema import Job

FILES = Path(__file__).resolve().parents[2].parent / "shared" / "data"
WORLD = parse_cluster("v100:1x4")
WORK = 1_000_000.0


def resnet(rule: str | None = "accordion", batch: int = 32, **more: object) -> Job:
    limits = None if rule is None else (batch, 256, batch, 256)
    fields = {"work": WORK, "model": "ResNet-18", "batch_size": batch, "adaptation": rule, "limits": limits, **more}
    return job("j", 0.0, 1, **fields)  # type: ignore[arg-type]


def seen(row: Job, done: float, *changes: tuple[float, int], off: float = 1.0, online: bool = False) -> Snapshot:
    """The job on one V100, ``off`` times as fast as its profile, after these changes, at this part of its work."""
    state = State(WORLD, OnlineModel(WORLD) if online else ProfiledModel(WORLD, catalog()))
    profiled = ProfiledModel(WORLD, catalog())
    spec = row.spec()

    def rate(size: int | None) -> float:
        return off * float(profiled.speeds(spec, size)[0])

    state.apply_events(0.0, [JobSubmitted(0.0, spec)])
    state.apply_commands([Start(0, 1, Placement(((0, 1),)))])
    at, part, size = 0.0, 0.0, row.batch_size
    state.apply_events(at, [JobStarted(at, 0, 1, rate(size), 0.0)])
    for upto, new in changes:
        at += (upto - part) * row.work / rate(size)
        part, size = upto, new
        state.apply_events(at, [BatchChanged(at, 0, 1, rate(size), part * row.work, new)])
    state.apply_events(at + (done - part) * row.work / rate(size), [])
    return state.freeze()


def ahead(moment: Snapshot, rule: str = "restatement") -> dict[int, float]:
    found = forecast(moment, moment.jobs["j"], rule)
    return {regime.batch_size: round(regime.work / WORK, 6) for regime in found.ahead}


@pytest.mark.parametrize(
    ("rule", "batch", "reached"),
    [("accordion", 32, (32, 256)), ("gns", 32, (32, 64, 128, 256)), ("gns", 96, (96, 192, 256)), (None, 32, (32,))],
)
def test_the_rule_and_its_limits_say_which_batch_sizes_may_come(
    rule: str | None, batch: int, reached: tuple[int, ...]
) -> None:
    assert sizes(resnet(rule, batch).spec()) == reached


@pytest.mark.parametrize(
    ("case", "moment", "expected"),
    [
        ("at first the regimes split the work evenly", seen(resnet(), 0.0), {32: 0.5, 256: 0.5}),
        ("the present one has had some of its part", seen(resnet(), 0.2), {32: 0.3, 256: 0.5}),
        ("what ended is known", seen(resnet("gns"), 0.3, (0.1, 64)), {64: 0.1, 128: 0.3, 256: 0.3}),
        ("what outlasts its part lasts as long again", seen(resnet("gns", 64), 0.35), {64: 0.35, 128: 0.15, 256: 0.15}),
        ("but not beyond the end", seen(resnet(), 0.6), {32: 0.4}),
        ("the last regime goes on to the end", seen(resnet(), 0.5, (0.3, 256)), {256: 0.5}),
        ("a return begins anew", seen(resnet(), 0.6, (0.3, 256), (0.6, 32)), {32: 0.2, 256: 0.2}),
        ("a job without a rule stays as it is", seen(resnet(None), 0.2), {32: 0.8}),
        ("a size outside the rule is taken to stay", seen(resnet(), 0.5, (0.4, 48)), {48: 0.5}),
    ],
)  # fmt: skip
def test_the_restatement_rule(case: str, moment: Snapshot, expected: dict[int, float]) -> None:
    assert ahead(moment) == pytest.approx(expected), case


def test_the_other_rules_stand_beside_it() -> None:
    moment = seen(resnet("gns"), 0.3, (0.1, 64))
    assert ahead(moment, "reactive") == {64: 0.7}
    assert ahead(moment, "agnostic") == {32: 0.7}
    # The prior counts as much as the whole work: (0.25 + 0.2) / 1.3 of it is thought to be 64, of which 0.2 is done.
    drawn = ahead(moment, "bayesian")
    assert drawn[128] == drawn[256] > drawn[64] > 0.0
    assert drawn[64] / drawn[128] == pytest.approx((0.45 / 1.3 - 0.2) / (0.25 / 1.3), rel=1e-4)
    assert sum(drawn.values()) == pytest.approx(0.7)


def test_a_declared_schedule_is_followed_to_the_letter() -> None:
    row = resnet("gns", batch_schedule=((0.2 * WORK, 64), (0.9 * WORK, 32)))
    moment = snapshot([row], WORLD, held={}, knowledge="oracle")
    profiled = ProfiledModel(WORLD, catalog())
    exact = sum(share * WORK / profiled.speeds(row.spec(), size)[0] for share, size in ((0.3, 32), (0.7, 64)))
    assert forecast(moment, moment.jobs["j"]).seconds == pytest.approx(exact)


def test_what_was_measured_counts_and_corrects_what_was_not() -> None:
    model = forecast(seen(resnet(), 0.0), seen(resnet(), 0.0).jobs["j"])
    slow = seen(resnet(), 0.0, off=0.5)
    found = forecast(slow, slow.jobs["j"])
    assert found.correction == pytest.approx(0.5)
    assert found.seconds == pytest.approx(2 * model.seconds)
    assert found.optimistic == pytest.approx(2 * model.optimistic)
    fresh = snapshot([resnet()], WORLD, held={})
    assert forecast(fresh, fresh.jobs["j"]).correction is None


def test_online_a_batch_size_never_seen_is_as_fast_as_the_present_one() -> None:
    moment = seen(resnet(), 0.1, online=True)
    rates = {regime.rate for regime in forecast(moment, moment.jobs["j"]).ahead}
    assert len(rates) == 1


@pytest.mark.parametrize(
    ("case", "row", "seconds"),
    [
        ("declares no work", job("j", 0, 1, 50, declares_work=False), 3600.0),
        ("declares less than it did", job("j", 0, 1, 5000, declared_work=100.0), 10.0),
        ("has its run time to go", job("j", 0, 1, 5000), 4000.0),
    ],
)
def test_a_job_that_runs_is_never_over_and_never_endless(case: str, row: Job, seconds: float) -> None:
    moment = snapshot([row], WORLD, held={"j": 1}, ran={"j": 1000.0}, now=1000.0)
    assert forecast(moment, moment.jobs["j"]).seconds == pytest.approx(seconds), case


def test_a_job_that_cannot_run_is_never_done() -> None:
    moment = snapshot([job("j", 0, 8, 100, kinds=("t4",))], WORLD, held={})
    assert forecast(moment, moment.jobs["j"]).seconds == float("inf")


def _keeps_its_promises(found: RegimeForecast, left: float) -> None:
    assert found.work == pytest.approx(left)
    assert 0.0 < found.optimistic <= found.seconds * (1 + 1e-9) <= found.pessimistic * (1 + 2e-9)
    assert 0.0 <= found.spread < 1.0


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["accordion", "gns"]),
    st.sampled_from([16, 32, 100, 256]),
    st.lists(st.tuples(st.floats(0.01, 0.95), st.sampled_from([32, 64, 256])), max_size=4, unique_by=lambda c: c[0]),
    st.floats(0.0, 0.99),
    st.floats(0.0, 0.9),
)  # fmt: skip
def test_whatever_was_seen_a_forecast_keeps_its_promises(
    rule: str, batch: int, changes: list[tuple[float, int]], further: float, noise: float
) -> None:
    changes = sorted(changes)
    done = (changes[-1][0] if changes else 0.0) * (1 - further) + further
    moment = seen(resnet(rule, min(batch, 256)), done, *changes)
    for name in RULES:
        plain = forecast(moment, moment.jobs["j"], name)
        _keeps_its_promises(plain, WORK - moment.jobs["j"].done)
        noisy = forecast(moment, moment.jobs["j"], name, noise)
        assert 1 - noise - 1e-9 <= noisy.seconds / plain.seconds <= 1 + noise + 1e-9


@pytest.mark.parametrize("trace", ["120", "460"])
def test_public_jobs_are_predicted_as_well_as_asked_for(trace: str) -> None:
    if not (FILES / "shockwave").exists():
        pytest.skip("the public traces are not here")
    errors = prediction_errors(FILES, trace, "restatement")
    for progress, most in zip(PROGRESS, (0.08, 0.07, 0.03, 0.005), strict=True):
        assert errors[progress] <= most
    # The paper's figure 5: both other rules are worse where most is still to come.
    for other in ("bayesian", "reactive"):
        worse = prediction_errors(FILES, trace, other)
        assert worse[0.3] > errors[0.3]
