"""Themis's admission control: apps wait outside the auctions while those inside request enough."""

from math import inf

import pytest

from shoal.core.decision import Grant, Refusal, Verdicts
from shoal.core.snapshot import Snapshot
from shoal.core.topology import parse_cluster
from shoal.policy.registry import parse_policy
from shoal.policy.themis.policy import Themis
from shoal.policy.themis.reasons import NOT_ADMITTED
from shoal.scenario.scenario import Scenario
from shoal.scenario.simulation import run
from shoal.testing.builders import job, simulate, snapshot
from shoal.testing.conformance import check_policy
from shoal.workload.generators.registry import generate


def decided(themis: Themis, snap: Snapshot) -> Verdicts:
    verdicts = themis.decide(snap).verdicts
    assert isinstance(verdicts, Verdicts)
    return verdicts


def test_apps_beyond_the_limit_wait_with_the_requested_gpus_in_their_reason() -> None:
    """Four GPUs, admit=1.5: 6 GPUs may be requested; the first two apps request 5, the third 2, the fourth 1."""
    jobs = [job(f"a{i}", submitted=i, gpus=gpus) for i, gpus in enumerate((4, 1, 2, 1))]
    verdicts = decided(Themis(f=0.0, admit=1.5), snapshot(jobs, "v100:1x4"))
    reasons = [verdicts.reason(i) for i in range(4)]
    assert [reason.template is NOT_ADMITTED for reason in reasons] == [False, False, True, True]
    assert reasons[2].sentence() == (
        "waits for admission: its app requests 2 GPUs, the admitted apps request 5, and together they may request 6; "
        "apps are admitted in order of arrival"
    )
    assert verdicts.gpus[2:].tolist() == [0, 0]
    assert verdicts.gpus[:2].any()


def test_without_the_option_all_apps_take_part() -> None:
    jobs = [job(f"a{i}", submitted=i, gpus=4) for i in range(4)]
    every = decided(Themis(f=0.0), snapshot(jobs, "v100:1x4"))
    assert all(every.reason(i).template is not NOT_ADMITTED for i in range(4))


def test_an_app_that_exceeds_the_limit_alone_is_admitted_when_it_is_alone() -> None:
    jobs = [job("wide", gpus=4)]
    verdicts = decided(Themis(admit=0.5), snapshot(jobs, "v100:1x4"))
    assert isinstance(verdicts.at(0), Grant)


def test_an_app_that_can_never_run_takes_no_part_of_the_limit() -> None:
    jobs = [job("impossible", gpus=9), job("next", submitted=1.0, gpus=4)]
    verdicts = decided(Themis(admit=1.0), snapshot(jobs, "v100:1x4"))
    assert isinstance(verdicts.at(0), Refusal)
    assert verdicts.reason(0).template is not NOT_ADMITTED
    assert isinstance(verdicts.at(1), Grant)


def test_an_app_on_gpus_is_admitted_whatever_is_requested() -> None:
    jobs = [job("first", gpus=4), job("running", submitted=1.0, gpus=4)]
    snap = snapshot(jobs, "v100:2x4", held={"running": 4}, now=10.0)
    verdicts = decided(Themis(f=0.0, admit=0.5), snap)
    assert isinstance(verdicts.at(1), Grant)
    assert verdicts.reason(0).template is NOT_ADMITTED


def test_all_jobs_of_an_app_are_admitted_together() -> None:
    jobs = [job(f"s{i}", gpus=1, app="search", tenant="t") for i in range(6)] + [job("late", submitted=1.0)]
    verdicts = decided(Themis(f=0.0, admit=1.5), snapshot(jobs, "v100:1x4"))
    assert [verdicts.reason(i).template is NOT_ADMITTED for i in range(7)] == [False] * 6 + [True]


def test_apps_are_admitted_in_order_as_others_end_and_all_complete() -> None:
    jobs = [job(f"a{i}", submitted=float(i), gpus=2, seconds=1000.0) for i in range(6)]
    done = simulate(parse_policy("themis:f=0,admit=1,lease=60"), jobs, "v100:1x4")
    ends = [done.completed[f"a{i}"] for i in range(6)]
    assert ends == sorted(ends)
    assert ends[0] < 1100.0, "an admitted app is not held up by those that wait"


def test_searches_complete_under_the_limit() -> None:
    workload = generate("themis", jobs=60, seed=1, interarrival=300.0)

    def summary(policy: str) -> dict[str, float]:
        apps: dict[str, float] = run(Scenario(parse_cluster("p100:2x4"), policy), workload).summary["apps"]
        return apps

    limited, free = summary("themis:admit=2"), summary("themis")
    assert limited["completed"] == free["completed"] == limited["count"]


def test_the_limited_policy_conforms() -> None:
    check_policy(lambda: parse_policy("themis:admit=1.5"))


@pytest.mark.parametrize("admit", [0.0, -1.0, float("nan")])
def test_a_limit_that_admits_nothing_is_refused(admit: float) -> None:
    with pytest.raises(ValueError, match="admit"):
        Themis(admit=admit)


def test_the_default_is_no_limit() -> None:
    assert Themis().admit == inf
