"""Nodes that are rented: what is paid for when, who has to move, and that the ring's journal is derived again."""

from pathlib import Path

import pytest

from shoal.core.errors import InputError
from shoal.core.topology import parse_cluster
from shoal.scenario.replay import replay_file
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import SimulationResult, run
from shoal.sim.cloud import Bill, CloudTerms, Rental
from shoal.workload.importers.pollux import training_job
from shoal.workload.schema import Job, Workload

CLUSTER = parse_cluster("t4:4x4", prices={"t4": 1.0})


def trained(
    jobs: tuple[Job, ...], cloud: str | None, journal: Path | None = None, faults: str | None = None
) -> SimulationResult:
    scenario = Scenario(CLUSTER, "pollux", restart_cost="30", cloud=cloud, faults=faults)
    return run(scenario, Workload("w", jobs), journal_path=journal)


def bill_of(outcome: SimulationResult) -> Bill:
    assert outcome.bill is not None
    return outcome.bill


CIFAR = training_job("a", 100.0, "cifar10", 2, 256)


def test_a_node_is_ordered_when_a_job_comes_and_paid_for_until_the_last_one_ends() -> None:
    outcome = trained((CIFAR,), "goodput:boot=60")
    bill = bill_of(outcome)
    ended = outcome.jobs.rows()[0]["completed"]
    assert outcome.jobs.rows()[0]["started"] >= 160.0
    assert min(r.since for r in bill.rentals) == 100.0
    assert max(r.until for r in bill.rentals) == ended
    assert bill.nodes_over_time()[-1] == (ended, 0)
    paid = sum(r.until - r.since for r in bill.rentals) / 3600.0
    rent = outcome.summary["rent"]
    assert (rent["node_hours"], rent["cost"]) == (pytest.approx(paid), pytest.approx(4.0 * paid))
    assert rent["most_nodes"] == len(bill.rentals)


def test_by_throughput_more_is_rented_and_paid_than_by_goodput() -> None:
    hours = [bill_of(trained((CIFAR,), rule)).node_hours for rule in ("goodput", "throughput")]
    assert hours[0] < hours[1]


def test_the_more_waiting_is_worth_the_more_is_paid_and_the_sooner_it_is_done() -> None:
    found = [trained((CIFAR,), f"value:hour={hour}") for hour in (0, 1, 20)]
    paid = [bill_of(outcome).node_hours for outcome in found]
    done = [outcome.jobs.rows()[0]["completed"] for outcome in found]
    assert paid == sorted(paid)
    assert done == sorted(done, reverse=True)
    assert paid[0] < paid[-1]
    assert done[-1] < done[0]


def test_agents_that_probe_time_other_batches_and_the_job_takes_no_longer() -> None:
    long = training_job("long", 0.0, "yolov3", 1, 8)
    plain, probing = (trained((long,), f"value{option}") for option in ("", ":probe=0.2"))
    assert probing.jobs.rows() != plain.jobs.rows()
    assert probing.jobs.rows()[0]["completed"] <= 1.02 * plain.jobs.rows()[0]["completed"]


def test_unwanted_nodes_go_back_and_jobs_there_lose_nothing() -> None:
    long = training_job("long", 0.0, "yolov3", 1, 8)
    short = tuple(Job(id=f"s{i}", submitted=600.0, gpus=4, work=900.0) for i in range(3))
    outcome = trained((long, *short), "goodput:boot=0,keep=120")
    bill = bill_of(outcome)
    assert outcome.summary["completed"] == 4
    assert any(r.until < bill.rentals[-1].until - 3600.0 for r in bill.rentals)
    assert max(count for _, count in bill.nodes_over_time()) == 4


def test_with_faults_a_lost_node_is_paid_for_and_all_jobs_end() -> None:
    outcome = trained((CIFAR,), "goodput", faults="node_mtbf=3000,node_repair=300")
    assert outcome.summary["completed"] == 1
    assert bill_of(outcome).node_hours > 0


def test_a_cloud_s_journal_is_derived_again(tmp_path: Path) -> None:
    outcome = trained((CIFAR,), "goodput", tmp_path / "j.sqlite")
    derived, _, settings = replay_file(tmp_path / "j.sqlite")
    assert settings["cloud"] == "goodput"
    assert derived.decisions == outcome.summary["decisions"]


def test_a_job_that_nothing_on_offer_can_run_ends_the_run_and_costs_nothing() -> None:
    outcome = trained((Job(id="wide", submitted=0.0, gpus=17, work=60.0),), "goodput")
    assert outcome.summary["completed"] == 0
    assert bill_of(outcome).rentals == ()


def test_without_prices_there_is_no_cost() -> None:
    assert Bill((Rental(0, 0.0, 7200.0),), parse_cluster("t4:1x4")).summary() == {
        "node_hours": 2.0,
        "cost": None,
        "most_nodes": 1,
    }


BAD = {
    "an unknown rule": ("goodputs", "did you mean goodput"),
    "an unknown option": ("goodput:gain=1", "option"),
    "an option that is no number": ("throughput:gain=much", "must be a number"),
    "a negative time": ("goodput:boot=-1", "at least 0"),
    "bounds the wrong way round": ("goodput:above=0.3", "must hold"),
    "batches of less than nothing": ("value:probe=-0.1", "finite fraction"),
    "waiting that is worth less than nothing": ("value:hour=-2", "at least 0"),
}


@pytest.mark.parametrize("said", BAD)
def test_terms_that_make_no_sense_are_refused(said: str) -> None:
    spec, hint = BAD[said]
    with pytest.raises(InputError, match=hint):
        CloudTerms.parse(spec)


def test_a_policy_under_which_no_agent_reports_is_refused() -> None:
    with pytest.raises(InputError, match="take pollux or rank"):
        Scenario(CLUSTER, "fifo", cloud="goodput")
