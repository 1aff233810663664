"""Gandiva-Fair: stride scheduling with tickets and gangs."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.decision import Decision
from shoal.core.snapshot import Snapshot
from shoal.policy.classic.gandiva_fair import GandivaFair
from shoal.testing.builders import SimulationLog, job, simulate, snapshot

LONG = 1e6


def received(run: SimulationLog) -> dict[str, float]:
    """GPU-seconds by job at the last decision."""
    last = run.cycles[-1].snapshot
    return {name: view.attained for name, view in last.jobs.items()}


def test_turns_by_hand() -> None:
    # One GPU, rounds of 10 s. a 0–10, then its pass is 10. c comes at 10 with the least pass there is, b's 0: b came
    # first, 10–20 and done; c 20–30 and done; a 30–40.
    rows = [job("a", 0, 1, 20), job("b", 0, 1, 10), job("c", 10, 1, 10)]
    run = simulate(GandivaFair("job", round=10.0), rows, "gpu:1x1")
    assert run.completed == {"b": 20.0, "c": 30.0, "a": 40.0}
    assert (
        run.cycles[1].sentence("a")
        == "waits: its pass in GPU-seconds per ticket is 10; jobs with up to 0 go first and take the GPUs"
    )


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from([1.0, 2.0, 3.0, 0.5]), min_size=2, max_size=5))
def test_service_is_proportional_to_tickets(weights: list[float]) -> None:
    rows = [job(f"j{i}", 0, 1, LONG, weight=w) for i, w in enumerate(weights)]
    run = simulate(GandivaFair("job", round=10.0), rows, "gpu:1x1", until=2000.0)
    had, now = received(run), run.cycles[-1].now
    for i, w in enumerate(weights):
        # Stride scheduling is never off by more than a round for each competitor.
        assert had[f"j{i}"] == pytest.approx(now * w / sum(weights), abs=10.0 * len(weights))


def test_a_wide_gang_gets_its_share_among_narrow_jobs() -> None:
    # Four narrow jobs fill the 4 GPUs; the wide one takes a whole round when its pass is the least: one round in five.
    rows = [*(job(f"n{i}", 0, 1, LONG) for i in range(4)), job("wide", 0, 4, LONG)]
    run = simulate(GandivaFair("job", round=10.0), rows, "gpu:1x4", until=2000.0)
    had = received(run)
    assert had == pytest.approx(dict.fromkeys(had, 4 * run.cycles[-1].now / 5), abs=40.0)


@pytest.mark.parametrize(
    ("tickets_per", "gpus", "shares"),
    [
        ("tenant", 1, {"x0": 1 / 6, "x1": 1 / 6, "x2": 1 / 6, "y": 1 / 2}),
        ("job", 1, {"x0": 1 / 4, "x1": 1 / 4, "x2": 1 / 4, "y": 1 / 4}),
        ("gpu", 2, {"x0": 2 / 5, "x1": 1 / 5, "x2": 1 / 5, "y": 1 / 5}),
        ("job", 2, {"x0": 1 / 4, "x1": 1 / 4, "x2": 1 / 4, "y": 1 / 4}),
    ],
)
def test_tickets_are_equal_by_tenant_by_job_or_by_gpu(tickets_per: str, gpus: int, shares: dict[str, float]) -> None:
    # As many GPUs as x0's gang asks for, so that it runs alone or not at all.
    rows = [job(f"x{i}", 0, 1 if i else gpus, LONG, tenant="x") for i in range(3)] + [job("y", 0, 1, LONG, tenant="y")]
    run = simulate(GandivaFair(tickets_per, round=10.0), rows, f"gpu:1x{gpus}", until=6000.0)
    total = gpus * run.cycles[-1].now
    assert {name: had / total for name, had in received(run).items()} == pytest.approx(shares, abs=0.01)


def test_a_newcomer_neither_catches_up_nor_waits() -> None:
    # a and b have had 500 s each when c comes: from then on each gets a third.
    rows = [job("a", 0, 1, LONG), job("b", 0, 1, LONG), job("c", 1000, 1, LONG)]
    run = simulate(GandivaFair("job", round=10.0), rows, "gpu:1x1", until=1300.0)
    assert received(run) == pytest.approx({"a": 600.0, "b": 600.0, "c": 100.0}, abs=20.0)


def test_within_a_round_no_job_is_preempted() -> None:
    # b, new and with the least pass, waits for the round to end at 60.
    rows = [job("a", 0, 1, 100), job("b", 25, 1, 10)]
    run = simulate(GandivaFair("job", round=60.0), rows, "gpu:1x1")
    assert run.started["b"] == 60.0
    assert run.cycles[1].sentence("a") == "keeps its GPUs: its lease runs until t = 60 s"


class _Forgetful:
    """The policy with its memory taken away."""

    def decide(self, snapshot: Snapshot) -> Decision:
        return replace(GandivaFair(round=30.0).decide(replace(snapshot, carry=None)), carry=None)


def test_without_its_memory_it_still_serves_everyone() -> None:
    rows = [job(f"j{i}", 20.0 * i, 1 + i % 4, 200.0) for i in range(10)]
    assert len(simulate(_Forgetful(), rows, "gpu:1x4").completed) == 10


def test_a_job_that_cannot_run_takes_no_tickets_from_its_tenant() -> None:
    rows = [job("big", 0, 9, tenant="x"), job("x", 0, 1, LONG, tenant="x"), job("y", 0, 1, LONG, tenant="y")]
    run = simulate(GandivaFair(round=10.0), rows, "gpu:1x1", until=1000.0)
    had = received(run)
    assert had["x"] == pytest.approx(had["y"], abs=10.0)


@pytest.mark.parametrize(("options", "names"), [({"tickets_per": "user"}, "tickets_per"), ({"round": 0.0}, "round")])
def test_options_out_of_range_are_refused_by_name(options: dict[str, object], names: str) -> None:
    with pytest.raises(ValueError, match=names):
        GandivaFair(**options)  # type: ignore[arg-type]


def test_a_carry_of_other_jobs_is_no_harm() -> None:
    policy = GandivaFair()
    carry = policy.decide(snapshot([job("gone", 0), job("also", 0)], "gpu:1x1")).carry
    later = snapshot([job("a", 0), job("b", 0), job("c", 0)], "gpu:1x1", now=500.0, carry=carry)
    assert [v.reason.sentence()[:4] for v in policy.decide(later).verdicts.values()].count("runs") == 1
