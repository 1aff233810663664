"""The house policy: fair finishes, a common horizon, the smallest first, and what it learns of misjudged rates."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.commands import Stop
from shoal.core.topology import Locality
from shoal.perf.catalog import catalog
from shoal.policy.market import Market
from shoal.solve.makespan import lower_bound
from shoal.testing.builders import job, simulate, snapshot
from shoal.workload.schema import Job

ROUND = 120.0


def told(rows: list[Job], cluster: str, policy: Market, at: float = 0.0) -> dict[str, str]:
    moment = snapshot(rows, cluster, held={}, now=at)
    verdicts = policy.decide(moment).verdicts
    return {name: verdicts[name].reason.sentence() for name in moment.ids}


def test_the_shortest_goes_first_while_nobody_is_late_and_the_horizon_is_far() -> None:
    rows = [job("long", 0, 1, 3000), *(job(f"j{i}", 0, 1, 1000.0 + i) for i in range(8))]
    said = told(rows, "gpu:1x2", Market())
    assert said["j0"].startswith("runs: the 1,000 GPU-seconds it still takes are among the least")
    assert said["j1"].startswith("runs")
    # All can be done by 11,028 / 2 s. Nothing was measured yet: the long one may take e^0.4 · 3,000 s, and is to be
    # begun so long and three rounds before.
    assert "moves up at t = 678.526 s at the latest" in said["long"]


def test_a_job_that_would_keep_all_from_being_done_is_pressing() -> None:
    said = told([job("long", 0, 1, 1000), job("a", 0, 1, 400), job("b", 0, 1, 400)], "gpu:1x2", Market())
    assert said["long"] == "runs: it takes 1,000 s more, and if it waited not all jobs could be done by t = 1,000 s"


def test_a_job_that_would_miss_its_fair_finish_is_due_before_all() -> None:
    # Five jobs on one GPU: a's fair finish is 0.98 · 5 · 100 s after it came, and it takes 100 s. The others are new.
    rows = [job("a", 0, 1, 100), *(job(f"s{i}", 260, 1, 40) for i in range(4))]
    assert told(rows, "gpu:1x1", Market(margin=0.0), at=389.0)["a"].startswith("waits")
    assert told(rows, "gpu:1x1", Market(margin=0.0), at=390.0)["a"] == (
        "runs first: to be fair it is to be done by t = 490 s, and it takes 100 s more at best"
    )


def test_a_heavier_job_is_due_sooner() -> None:
    rows = [job("light", 0, 1, 100), job("heavy", 0, 1, 100, weight=4.0)]
    assert told(rows, "gpu:1x1", Market(margin=0.0), at=80.0)["heavy"].startswith("runs first")


def test_who_runs_is_due_three_rounds_sooner_so_that_it_is_not_stopped_and_started_in_turns() -> None:
    # Five jobs on one GPU: a ran 100 s of its 200 s, so its fair finish is 0.98 · 5 · 200 s after it came. It is due
    # from 880 s on if it waits, and from 520 s on if it runs; before that it goes on as one that is
    # pressing. The others are smaller.
    def of_a(at: float, held: dict[str, int]) -> str:
        rows = [job("a", 0, 1, 200), *(job(f"s{i}", at - 20.0, 1, 10) for i in range(4))]
        moment = snapshot(rows, "gpu:1x1", held=held, ran={"a": 100.0}, now=at)
        return Market(margin=0.0).decide(moment).verdicts["a"].reason.sentence()

    assert of_a(519.0, {"a": 1}).startswith("runs: it takes 100 s more")
    assert of_a(520.0, {"a": 1}).startswith("runs first")
    assert of_a(879.0, {}).startswith("waits")
    assert of_a(880.0, {}).startswith("runs first")


@pytest.mark.parametrize(("late", "crowd"), [(1, 4), (2, 6), (3, 7)])
def test_whoever_came_since_the_oldest_did_counts_but_no_more_than_twice_as_many_as_are_live(
    late: int, crowd: int
) -> None:
    # The short ones are gone by 2,000 s, the long one is not: a job that comes then is told its fair finish by all of
    # them, unless too few are left.
    rows = [job("long", 0, 1, 9000), *(job(f"short{i}", 0, 1, 100) for i in range(3))]
    rows += [job(f"late{i}", 2000, 2, 1000) for i in range(late)]
    told_at, said = simulate(Market(), rows, "gpu:1x2").story("late0")[0]
    assert told_at == 2000.0
    assert said.endswith(f"its fair finish being t = {2000 + 0.98 * crowd / 2 * 1000:,g} s")


def test_where_hardly_anybody_waits_a_job_is_not_due_at_once() -> None:
    # One job on one GPU was paused: its contention is 1.4, and not 1, at which its fair finish would be past.
    rows = [job("paused", 0, 1, 1000), job("small", 200, 1, 10)]
    assert told(rows, "gpu:1x2", Market(), at=200.0)["paused"].startswith("runs: it takes")
    assert told(rows, "gpu:1x2", Market(), at=372.0)["paused"].startswith("runs first")


def test_who_runs_is_pressing_three_rounds_sooner() -> None:
    # All can be done by (600 + 10 · 590) / 2 = 3,250 s. Waiting, the long one may take e^0.4 · 600 s and is to be begun
    # so long and 19.5 rounds before, 15 s from now. Running it is measured: in time by 310 s, but not by 360 s.
    rows = [job("long", 0, 1, 600), *(job(f"j{i}", 0, 1, 590.0) for i in range(10))]

    def of_long(held: dict[str, int]) -> str:
        moment = snapshot(rows, "gpu:1x2", held=held, now=0.0)
        return Market(alpha=inf, margin=19.5).decide(moment).verdicts["long"].reason.sentence()

    assert of_long({}).startswith("waits")
    assert of_long({"long": 1}).startswith("runs: it takes 600 s more")


@pytest.mark.parametrize(("seconds", "goes_on"), [(1400.0, True), (1450.0, False)])
def test_of_what_a_job_that_runs_has_left_seven_tenths_count(seconds: float, goes_on: bool) -> None:
    rows = [job("runs", 0, 1, seconds), job("new", 0, 1, 1000), *(job(f"long{i}", 0, 1, 9000.0) for i in range(4))]
    moment = snapshot(rows, "gpu:1x1", held={"runs": 1}, now=0.0)
    verdict = Market(alpha=inf).decide(moment).verdicts["runs"]
    assert verdict.reason.sentence().startswith("runs: the" if goes_on else "waits")


def test_of_two_of_a_size_the_heavier_goes_first() -> None:
    rows = [job("light", 0, 1, 1000), job("heavy", 0, 1, 1000, weight=2.0)]
    rows += [job(f"long{i}", 0, 1, 9000.0) for i in range(4)]
    said = told(rows, "gpu:1x1", Market(alpha=inf))
    assert said["heavy"].startswith("runs: the 1,000 GPU-seconds")
    assert said["light"].startswith("waits")


def test_of_two_of_a_size_the_one_that_is_further_behind_goes_first() -> None:
    rows = [job("new", 900, 1, 1000), job("old", 0, 1, 1000), *(job(f"long{i}", 0, 1, 9000.0) for i in range(4))]
    said = told(rows, "gpu:1x1", Market(alpha=inf), at=900.0)
    assert said["old"].startswith("runs: the 1,000 GPU-seconds")
    assert said["new"].startswith("waits")


def test_of_two_that_take_as_long_the_narrower_goes_first() -> None:
    rows = [job("wide", 0, 2, 1000), job("narrow", 0, 1, 1000), *(job(f"long{i}", 0, 1, 5000.0) for i in range(6))]
    said = told(rows, "gpu:1x2", Market(alpha=inf))
    assert said["narrow"].startswith("runs: the 1,000 GPU-seconds")
    assert said["wide"].startswith("waits")


def test_when_the_due_want_more_than_there_is_nobody_is() -> None:
    # The wide ones are long overdue. One of them is due; two want more than there is, and neither is.
    wide, short = [job(f"wide{i}", 0, 4, 2000) for i in range(2)], job("short", 999_990, 2, 100)
    assert told([wide[0], short], "gpu:1x4", Market(margin=0.0), at=1e6)["wide0"].startswith("runs first")
    said = told([*wide, short], "gpu:1x4", Market(margin=0.0), at=1e6)
    assert said["wide0"].startswith("runs: the 8,000 GPU-seconds")
    assert not any(sentence.startswith("runs first") for sentence in said.values())


def test_whoever_runs_keeps_its_gpus_until_the_round_ends() -> None:
    rows = [job("long", 0, 1, 1000), job("short", 30, 1, 10)]
    run = simulate(Market(), rows, "gpu:1x1")
    assert run.started["short"] == ROUND
    assert run.story("long")[1] == (30.0, "keeps its GPUs: its lease runs until t = 120 s")


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(1, 30), min_size=1, max_size=16), st.integers(1, 5), st.sampled_from([1.0, 3.0]))
def test_without_arrivals_the_horizon_is_kept_to_within_two_rounds(
    minutes: list[int], gpus: int, margin: float
) -> None:
    # docs/house-policy.md proves it for jobs of one GPU, exact predictions, free restarts, nobody due, margin ≥ 1.
    seconds = [60.0 * m for m in minutes]
    rows = [job(f"j{i}", 0, 1, s) for i, s in enumerate(seconds)]
    run = simulate(Market(alpha=inf, margin=margin), rows, f"gpu:1x{gpus}")
    bound = lower_bound(seconds, [1] * len(seconds), gpus)
    assert bound - 1e-6 <= max(run.completed.values()) <= bound + 2 * ROUND + 1e-6


def test_shortest_first_alone_would_not_keep_it() -> None:
    # One of 3,000 s and twelve of 500 s on two GPUs: 4,500 s are enough, and shortest first ends at 6,000 s.
    rows = [job("long", 0, 1, 3000), *(job(f"j{i}", 0, 1, 500) for i in range(12))]
    run = simulate(Market(alpha=inf), rows, "gpu:1x2")
    assert max(run.completed.values()) <= 4500 + 2 * ROUND


def test_where_rates_are_misjudged_long_jobs_are_measured_early() -> None:
    # Those that come first show by how much rates are off; after that a long job may be far longer than it says.
    rows = [job(f"first{i}", 0, 1, 600.0 + i, model=None) for i in range(4)]
    rows += [job(f"short{i}", 130, 1, 600.0 + i) for i in range(16)] + [job("long", 130, 1, 1500)]
    sure, unsure = (simulate(Market(), rows, "gpu:1x4", noise=noise, seed=3) for noise in (0.0, 0.8))
    assert unsure.started["long"] < sure.started["long"]


def test_what_a_forecast_rests_on_is_made_anew_when_it_changed() -> None:
    before = snapshot([job("a", 0, 1, 1000), job("b", 0, 1, 1100)], "gpu:1x1", held={"a": 1}, now=0.0)
    policy = Market(alpha=inf)
    first = policy.decide(before)
    later = snapshot(
        [job("a", 0, 1, 1000), job("b", 0, 1, 1100)], "gpu:1x1", held={"a": 1}, ran={"a": 600.0}, now=600.0
    )
    again = policy.decide(replace(later, carry=first.carry))
    assert again.verdicts["a"].reason == policy.decide(later).verdicts["a"].reason
    assert "takes 1,100 s more" in again.verdicts["b"].reason.sentence()


@pytest.mark.parametrize(
    ("option", "value"),
    [("round", 0.0), ("alpha", 0.0), ("margin", -1.0), ("rule", "guess"), ("noise", 1.0)],
)
def test_options_must_make_sense(option: str, value: object) -> None:
    with pytest.raises(ValueError, match=option):
        Market(**{option: value})  # type: ignore[arg-type]


def test_a_job_on_a_slow_gpu_goes_to_a_fast_one_that_comes_free() -> None:
    # In seconds on the V100, where a ResNet-50 is 7.1 times as fast. The longer one has that first; when it is done the
    # other moves there at the end of the round, unless it would then save less than a minute.
    profile = catalog().profile("ResNet-50")
    fast, slow = (profile.rate(kind, 1, Locality.SAME_NODE, 64) for kind in ("v100", "k80"))

    def run(seconds: float) -> tuple[float, int]:
        rows = [job(n, work=s * fast, model="ResNet-50", batch_size=64) for n, s in (("a", 3000.0), ("b", seconds))]
        done = simulate(Market(), rows, "v100:1x1,k80:1x1")
        assert done.completed["a"] == pytest.approx(3000.0)
        return done.completed["b"], sum(1 for _, c in done.commands if c.job == 1 and not isinstance(c, Stop))

    assert run(600.0) == pytest.approx((3000.0 + 600.0 - 3000.0 * slow / fast, 2))
    nearly = 3000.0 + 60.0
    assert run(nearly * slow / fast) == pytest.approx((nearly, 1))
