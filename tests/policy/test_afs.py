"""AFS: shares by length and efficiency, turns when jobs outnumber GPUs, and measuring what is not known."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.decision import Verdicts
from shoal.core.interfaces import Policy
from shoal.core.snapshot import Snapshot
from shoal.core.topology import parse_cluster
from shoal.perf.afs_profiles import AFS_MODELS
from shoal.policy.elastic.afs import AfsL, AfsP, AfsS
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.solve.afs_shares import Gains, with_lengths, without_lengths
from shoal.solve.network_packing import packing_units
from shoal.testing.builders import job, simulate, snapshot
from shoal.workload.schema import Job, Workload

VGG, CHATBOT, TRANSFORMER = "afs-vgg16", "afs-chatbot", "afs-transformer"
HOUR = 3600.0


def training(name: str, model: str, seconds: float, submitted: float = 0.0, gpus: int = 1) -> Job:
    """An elastic job of one of AFS's models that takes this long on one GPU."""
    return job(name, submitted, gpus, work=seconds, min_gpus=1, max_gpus=AFS_MODELS[model].peak_gpus, model=model)


def shares(policy: Policy, moment: Snapshot) -> dict[str, int]:
    verdicts = Verdicts.of(moment, policy.decide(moment).verdicts)
    return dict(zip(moment.ids, verdicts.gpus.tolist(), strict=True))


def gains(model: str) -> Gains:
    return Gains.of([AFS_MODELS[model].speedup(k) for k in range(AFS_MODELS[model].peak_gpus + 1)])


# ── stage one ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_with_lengths_the_shortest_get_one_gpu_each_when_jobs_outnumber_gpus() -> None:
    rows = [training(f"j{n}", VGG, n * HOUR) for n in (5, 3, 1, 4, 2)]
    moment = snapshot(rows, "gtx1080:1x3")
    assert shares(AfsL(), moment) == {"j5": 0, "j3": 1, "j1": 1, "j4": 0, "j2": 1}
    told = AfsL().decide(moment).verdicts["j5"].reason.sentence()
    assert (
        told
        == "waits: its remaining time on its fewest GPUs is 18,000; jobs with up to 10,800 go first and take the GPUs"
    )


def test_without_lengths_the_least_executed_get_a_unit_of_time_each() -> None:
    # One GPU, units of 100 s. a, the first, runs until 100; b, which has had nothing, until 200; c until 230, when it
    # is done. Then a and b have had one unit each, and a came first: 230–330, b 330–430, and a's last 50 s.
    rows = [training("a", VGG, 250), training("b", VGG, 200), training("c", VGG, 30, submitted=20)]
    done = simulate(AfsP(unit=100), rows, "gtx1080:1x1").completed
    assert done == {"c": pytest.approx(230), "b": pytest.approx(430), "a": pytest.approx(480)}


def test_a_newcomer_waits_for_the_unit_to_end_rather_than_preempt() -> None:
    rows = [training("a", VGG, 300), training("b", VGG, 10, submitted=30)]
    assert simulate(AfsP(unit=100), rows, "gtx1080:1x1").completed["b"] == pytest.approx(110)


def test_a_job_served_again_at_once_has_a_whole_unit_before_it() -> None:
    # At 100 a has had one unit and b none, so b runs 100–200; at 200 both have had one, a runs until it is done.
    rows = [training("a", VGG, 180), training("b", VGG, 150)]
    run_ = simulate(AfsP(unit=100), rows, "gtx1080:1x1")
    assert run_.completed == {"a": pytest.approx(280), "b": pytest.approx(330)}
    assert run_.starts == {"a": 2, "b": 2}


# ── stage two ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_shares_are_those_of_the_mathematics() -> None:
    names = [VGG, CHATBOT, TRANSFORMER, VGG]
    rows = [training(f"j{i}", name, (4 - i) * HOUR) for i, name in enumerate(names)]
    moment = snapshot(rows, "gtx1080:4x4")
    known, work = [gains(name) for name in names], [(4 - i) * HOUR for i in range(4)]
    assert list(shares(AfsL(), moment).values()) == with_lengths(known, work, [1] * 4, 12)
    assert list(shares(AfsP(), moment).values()) == without_lengths(known, [1] * 4, 12)


def test_knowing_only_the_best_count_shares_are_equal_up_to_it() -> None:
    rows = [training("vgg", VGG, HOUR), training("bot", CHATBOT, HOUR), training("text", TRANSFORMER, HOUR)]
    assert shares(AfsS(), snapshot(rows, "gtx1080:4x4")) == {"vgg": 6, "bot": 4, "text": 6}


@pytest.mark.parametrize("policy", [AfsL(), AfsP(), AfsS()], ids=["l", "p", "s"])
def test_gpus_beyond_the_peak_stay_idle(policy: Policy) -> None:
    wide = job("wide", 0, 1, work=100.0, min_gpus=1, max_gpus=16, model=CHATBOT)
    moment = snapshot([wide], "gtx1080:4x4")
    assert shares(policy, moment) == {"wide": 4}
    assert policy.decide(moment).verdicts["wide"].reason.sentence() == (
        "runs on 4 GPUs: the last made it 4.448% faster, one more would make it 0%"
    )


def test_shares_are_made_anew_when_a_job_comes_and_when_one_goes() -> None:
    rows = [training("a", TRANSFORMER, HOUR), training("b", TRANSFORMER, 60.0, submitted=10)]
    run_ = simulate(AfsP(), rows, "gtx1080:2x4")
    assert [cycle.granted() for cycle in run_.cycles] == [{"a": 8}, {"a": 4, "b": 4}, {"a": 8}, {}]


def test_rigid_gangs_are_stage_one_and_elastic_jobs_share_the_rest() -> None:
    rows = [job("gang", 0, 5, work=100.0, model=TRANSFORMER), training("a", VGG, HOUR), training("b", VGG, HOUR)]
    for policy in (AfsL(), AfsP(), AfsS()):
        found = shares(policy, snapshot(rows, "gtx1080:2x4"))
        assert found["gang"] == 5
        assert sorted((found["a"], found["b"])) == [1, 2]


# ── the paper's examples ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("policy", "hours"), [("srtf", 1.75), ("afs-l", 2.0), ("afs-p", 2.0), ("max-min", 2.0)])
def test_appendix_a_shortest_first_takes_1_75_hours_and_sharing_2(policy: str, hours: float, tmp_path: Path) -> None:
    """A takes 2 h on one GPU and 1 h on two, B 2 h and 1.5 h; the paper's "1.25" for SRTF is (1 + 2.5) / 2 misadded."""
    file = tmp_path / "appendix.json"
    file.write_text(
        '{"gpu": {"(\'A\', 1)": {"null": 1.0}, "(\'A\', 2)": {"null": 2.0},'
        ' "(\'B\', 1)": {"null": 1.0}, "(\'B\', 2)": {"null": 1.3333333333333333}}}'
    )
    rows = tuple(job(n, 0, 2, work=2 * HOUR, min_gpus=1, max_gpus=2, model=n, batch_size=1) for n in "AB")
    scenario = Scenario(parse_cluster("gpu:1x2"), policy, restart_cost="0", throughputs=str(file))
    assert run(scenario, Workload("appendix", rows)).summary["avg_jct"] / HOUR == pytest.approx(hours)


# ── packing and measuring ─────────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(sorted(AFS_MODELS)), st.integers(1, 50)), min_size=1, max_size=12),
    st.sampled_from([AfsL(packing=True), AfsP(packing=True), AfsS(packing=True)]),
)
def test_packed_shares_are_parts_or_multiples_of_a_machine(jobs: list[tuple[str, int]], policy: Policy) -> None:
    rows = [training(f"j{i}", model, HOUR * hours) for i, (model, hours) in enumerate(jobs)]
    found = shares(policy, snapshot(rows, "gtx1080:4x4"))
    units = packing_units(4, 16)
    assert all(share in units for share in found.values())
    assert sum(found.values()) <= 16


def test_an_unknown_job_starts_on_an_equal_part_is_measured_on_less_and_then_gets_its_share() -> None:
    """The first takes the 8 GPUs it can use, is measured on 4, 2 and 1, and goes back to 8; the second, which could use
    44 and is taken to scale linearly, begins with its half."""
    rows = [training("vgg", VGG, 10 * HOUR, gpus=8), training("text", TRANSFORMER, 10 * HOUR, submitted=HOUR)]
    run_ = simulate(AfsP(packing=True), rows, "gtx1080:4x4", knowledge="online", placement="network")
    story = [c.granted() for c in run_.cycles]
    assert [g["vgg"] for g in story[:6]] == [8, 4, 2, 1, 8, 8]
    first = next(g for g in story if "text" in g)
    assert first == {"vgg": 8, "text": 8}
    reviews = [b.now - a.now for a, b in zip(run_.cycles[:5], run_.cycles[1:6], strict=True)]
    assert reviews[:4] == [30.0] * 4


def test_what_was_measured_gives_nearly_the_shares_that_were_known() -> None:
    names = [VGG, TRANSFORMER, CHATBOT, VGG]
    rows = [training(f"j{i}", name, 20 * HOUR, submitted=600.0 * i) for i, name in enumerate(names)]
    told, measured = (
        simulate(AfsP(packing=True), rows, "gtx1080:4x4", knowledge=k, placement="network").completed
        for k in ("profiled", "online")
    )
    assert measured == pytest.approx(told, rel=0.05)


@pytest.mark.parametrize("make", [AfsP, AfsS])
def test_times_must_be_times(make: type[AfsP] | type[AfsS]) -> None:
    for bad in (0.0, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="unit"):
            make(unit=bad)
        with pytest.raises(ValueError, match="trial"):
            make(trial=bad)
