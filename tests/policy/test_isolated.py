"""Isolated: exactly 1/n of the cluster each, in whole gangs and rounds."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.policy.classic.isolated import Isolated
from shoal.testing.builders import SimulationLog, job, simulate, snapshot

LONG = 1e7


def received(run: SimulationLog) -> dict[str, float]:
    """GPU-seconds by job at the last decision."""
    return {name: view.attained for name, view in run.cycles[-1].snapshot.jobs.items()}


def test_two_thirds_of_the_time_by_hand() -> None:
    # 4 GPUs, three jobs: 4/3 each. b and c need 1 and run throughout. a needs 2, so two rounds of three: it runs 0–360,
    # not 360–720 (it would then have had 1440 GPU-seconds where it has earned 960), and 720–1080: its 720 s are done
    # just when 4/3 GPUs would have done them, at 1440 / (4/3) = 1080. Meanwhile 2 GPUs stood idle.
    rows = [job("a", 0, 2, 720), job("b", 0, 1, 2000), job("c", 0, 1, 2000)]
    run = simulate(Isolated(), rows, "gpu:1x4")
    assert run.completed == {"a": 1080.0, "b": 2000.0, "c": 2000.0}
    at_360 = next(c for c in run.cycles if c.now == 360.0)
    assert at_360.granted() == {"b": 1, "c": 1}
    assert at_360.sentence("a") == "waits: its share is 1.333 GPUs, it needs 2"
    assert at_360.sentence("b") == "runs on its share: 1 GPU of an equal 1.33333"


def test_whole_cluster_gangs_alternate_by_hand() -> None:
    # Half the cluster each. a 0–360, b 360–720; at 720 both are owed the same, the earlier goes: a 720–1080 and done.
    # b then owns everything: 1080–1440. On half the cluster both would have been done at 1440.
    rows = [job("a", 0, 4, 720), job("b", 0, 4, 720)]
    assert simulate(Isolated(), rows, "gpu:1x4").completed == {"a": 1080.0, "b": 1440.0}


def test_a_job_alone_runs_at_once_and_to_its_end() -> None:
    run = simulate(Isolated(), [job("a", 50, 2, 1000)], "gpu:1x4")
    assert run.completed == {"a": 1050.0}
    assert [c.now for c in run.cycles] == [50.0, 1050.0]


def test_free_gpus_are_not_lent() -> None:
    # 8 GPUs, four jobs: 2 each. The gangs of 4 run half the time, in turn; the two small jobs need 1 each. So 6 GPUs of
    # 8 are used on average, though a gang of 4 waits all the while.
    rows = [job(f"wide{i}", 0, 4, LONG) for i in range(2)] + [job(f"one{i}", 0, 1, LONG) for i in range(2)]
    run = simulate(Isolated(round=100.0), rows, "gpu:2x4", until=40_000.0)
    now = run.cycles[-1].now
    assert received(run) == pytest.approx({"wide0": 2 * now, "wide1": 2 * now, "one0": now, "one1": now}, abs=400.0)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from([1, 2, 4]), st.integers(1, 9))
def test_received_service_stays_within_a_round_of_the_share(gang: int, count: int) -> None:
    rows = [job(f"j{i}", 0, gang, LONG) for i in range(count)]
    run = simulate(Isolated(round=100.0), rows, "gpu:2x4", until=20_000.0)
    last = run.cycles[-1]
    share = min(gang, 8 / count)
    for name, had in received(run).items():
        assert had == pytest.approx(share * last.now, abs=2 * gang * 100.0), name


def test_a_change_in_the_number_of_jobs_counts_from_then_on() -> None:
    # Alone, a owns the GPU; from 1000 on it owns half of it. By 5000 it has earned 1000 + 2000, b 2000.
    rows = [job("a", 0, 1, LONG), job("b", 1000, 1, LONG)]
    run = simulate(Isolated(round=100.0), rows, "gpu:1x1", until=5000.0)
    last = run.cycles[-1].now
    assert received(run) == pytest.approx({"a": 1000 + (last - 1000) / 2, "b": (last - 1000) / 2}, abs=200.0)


def test_no_job_waits_for_ever_when_gangs_cannot_share() -> None:
    # The wide gang is entitled to half of 8 GPUs, that is to all of them half the time; the narrow job to one always.
    # Both cannot be: whoever is owed more goes first.
    rows = [job("wide", 0, 8, 3600), job("narrow", 0, 1, 3600)]
    run = simulate(Isolated(), rows, "gpu:1x8")
    assert set(run.completed) == {"wide", "narrow"}
    assert max(run.completed.values()) <= 3 * 3600.0


def test_short_jobs_do_not_wait_for_a_rounds_worth() -> None:
    # Forty jobs of 10 s on one GPU: a fortieth of it each. Each has earned half of its 10 s after 200 s.
    rows = [job(f"j{i}", 0, 1, 10) for i in range(40)]
    run = simulate(Isolated(), rows, "gpu:1x1")
    assert len(run.completed) == 40
    assert max(run.completed.values()) <= 800.0


def test_when_no_job_has_earned_a_turn_the_next_review_is_later_than_the_next_round() -> None:
    # 5000 jobs on one GPU: the first turn is earned after 2500 rounds.
    rows = [job(f"j{i}", 0, 1, LONG) for i in range(5000)]
    decision = Isolated(round=10.0).decide(snapshot(rows, "gpu:1x1"))
    assert decision.review_at == pytest.approx(25_000.0, abs=20.0)


class _Forgetful:
    """The policy with its ledger taken away."""

    def decide(self, snapshot: Snapshot) -> Decision:
        return replace(Isolated(round=100.0).decide(replace(snapshot, carry=None)), carry=None)


def test_without_its_ledger_it_takes_todays_share_for_the_past() -> None:
    rows = [job(f"j{i}", 0, 2, LONG) for i in range(4)]
    run = simulate(_Forgetful(), rows, "gpu:1x4", until=20_000.0)
    assert received(run) == pytest.approx(dict.fromkeys(received(run), run.cycles[-1].now), abs=400.0)


def test_a_round_below_a_second_is_refused() -> None:
    with pytest.raises(ValueError, match="round"):
        Isolated(round=0.0)
