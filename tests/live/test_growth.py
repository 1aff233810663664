"""The GPUs that an engine is asked for: those that jobs lack after a decision, or that their goodput makes worth it."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from shoal.core.decision import Grant, Refusal, Verdict, Verdicts
from shoal.core.events import JobSetAside
from shoal.core.goodput import GoodputReport, StepFit
from shoal.core.job import BatchSetting
from shoal.core.reasons import (
    NO_KIND,
    NO_ROOM,
    RETURNED,
    SET_ASIDE,
    TENANT_CAP,
    WIDER_THAN_CAP,
    Reason,
    ReasonTemplate,
)
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement
from shoal.live import growth
from shoal.live.growth import wished_gpus
from shoal.live.views import LastDecision
from shoal.policy.pollux.autoscaling import Need, NodeOffer, ValueRule
from shoal.policy.pollux.policy import Pollux
from shoal.testing.builders import job, snapshot
from shoal.workload.schema import Job


def report(network: float) -> GoodputReport:
    near, far = (0.005, 0.00005), (network, network / 100)
    fit = StepFit((0.02, 0.002), near, far, far, 2.0, 256, gpus=4)
    return GoodputReport((("t4", fit),), 1e6, 128, 4, BatchSetting(128))


@pytest.mark.parametrize(("network", "asked"), [(0.05, {"t4": 4}), (50.0, {})])
def test_a_job_that_would_train_well_on_more_nodes_wishes_for_them(network: float, asked: dict[str, int]) -> None:
    one = job(
        "a", 0.0, 1, work=5e6, min_gpus=1, max_gpus=64, model="cifar10", batch_size=128, limits=(128, 4096, 32, 1024)
    )
    seen = snapshot([one], "t4:1x4", knowledge="online", now=3600.0)
    seen = replace(seen, reports={seen.register.numbers["a"]: report(network)})
    verdicts = Verdicts.of(seen, Pollux().decide(seen).verdicts)
    assert verdicts.gpus.tolist() == [4]
    assert wished_gpus(LastDecision(seen, verdicts)) == asked


def refused(template: ReasonTemplate) -> Refusal:
    return Refusal(Reason(template, (1.0,) * len(template.numbers)))


def wished(seen: Snapshot, /, **given: int | Verdict) -> dict[str, int]:
    """The wish after a decision that grants these GPUs, or gives these verdicts, and refuses all other jobs."""
    verdicts = {id: Grant(one) if isinstance(one := given.get(id, refused(NO_ROOM)), int) else one for id in seen.ids}
    return wished_gpus(LastDecision(seen, Verdicts.of(seen, verdicts)))


def test_before_the_first_decision_nothing_is_wished_for() -> None:
    assert wished_gpus(None) == {}


def test_waiting_jobs_lack_what_they_ask_for_of_their_fastest_kind_beyond_what_is_free() -> None:
    rows = [job("a", gpus=3, kinds=("k80",)), job("b", gpus=4, kinds=("k80",)), job("c", gpus=2)]
    cluster = "k80:1x4,p100:1x4"
    assert wished(snapshot(rows, cluster)) == {"k80": 5}, "3 + 4 + 2, less 4: c is as fast on the first kind as on any"
    assert wished(snapshot(rows[:2], cluster)) == {"k80": 3}
    assert wished(snapshot(rows[:1], cluster)) == {}
    both = [*rows[:2], *(job(id, gpus=3, kinds=("p100",)) for id in "de")]
    assert wished(snapshot(both, cluster)) == {"k80": 3, "p100": 2}


def test_granted_gpus_are_not_free_and_those_a_job_is_leaving_are() -> None:
    rows = [job("runs", gpus=3, kinds=("k80",)), job("waits", gpus=3, kinds=("k80",))]
    seen = snapshot(rows, "k80:1x4,p100:2x4", held={"runs": 3})
    assert wished(seen, runs=3) == {"k80": 2}
    assert wished(seen) == {}, "the run that is to stop does not count as waiting, nor its GPUs as taken"
    other = snapshot([job("runs", gpus=3, kinds=("p100",)), rows[1]], "k80:1x4,p100:2x4", held={"runs": 3})
    assert wished(other, runs=3) == {}, "GPUs of another kind"


@pytest.mark.parametrize("template", [NO_KIND, RETURNED, SET_ASIDE, TENANT_CAP, WIDER_THAN_CAP], ids=lambda t: t.name)
def test_a_job_that_another_rule_holds_back_wishes_for_nothing(template: ReasonTemplate) -> None:
    rows = [job("a", gpus=4), job("b", gpus=2, min_gpus=1, max_gpus=4)]
    seen = snapshot(rows, "k80:1x4", held={"b": 1})
    assert wished(seen, b=1) == {"k80": 2}, "4 and 1 more, less 3 that are free"
    assert wished(seen, a=refused(template), b=1) == {}
    tight = snapshot([*rows, job("c", gpus=3)], "k80:1x4", held={"b": 1, "c": 3})
    assert wished(tight, a=refused(template), b=1, c=3) == {"k80": 1}
    assert wished(tight, a=refused(template), b=Grant(1, reason=refused(template).reason), c=3) == {}


def test_a_job_that_is_kept_from_the_policy_wishes_for_nothing() -> None:
    rows = [job("a", gpus=4), job("b", gpus=4, min_gpus=1, max_gpus=4)]
    seen = snapshot(rows, "k80:1x4", held={"b": 2})
    assert wished(seen, b=2) == {"k80": 4}, "4 and 2 more, less 2 that are free"
    aside = {seen.register.numbers[id]: JobSetAside(0.0, seen.register.numbers[id], "slow", 60.0) for id in ("a", "b")}
    assert wished(replace(seen, set_aside={0: aside[0]}), b=2) == {}
    assert wished(replace(seen, set_aside={1: aside[1]}), b=2) == {"k80": 2}


def test_a_running_elastic_job_lacks_what_it_asks_for_and_was_not_granted() -> None:
    rows = [job("a", gpus=4, min_gpus=1, max_gpus=8), job("b", gpus=2)]
    seen = snapshot(rows, "k80:1x4", held={"a": 2, "b": 2})
    assert wished(seen, a=2, b=2) == {"k80": 2}
    assert wished(seen, a=3, b=2) == {"k80": 1}
    assert wished(seen, a=4) == {}, "it has what it asks for, and could use more"
    few = snapshot([job("a", gpus=1, min_gpus=1, max_gpus=4), job("b", gpus=2)], "k80:1x4", held={"a": 2, "b": 2})
    assert wished(few, a=2, b=2) == {}, "it has more than it asks for"


def test_a_job_that_starts_now_lacks_gpus_of_its_fastest_kind_unless_it_is_granted_another() -> None:
    rows = [job("a", gpus=2), job("b", gpus=4, min_gpus=1, max_gpus=4, kinds=("p100",)), job("c", gpus=3)]
    seen = snapshot(rows, "k80:1x4,p100:1x4")
    assert wished(seen, a=2, b=2) == {"k80": 1}, "c asks for 3; 2 of b's kind are free for b"
    assert wished(seen, a=Grant(2, kind="p100"), b=2) == {"p100": 2}, "and 4 of c's kind for c"


def test_gpus_that_a_starting_job_is_granted_of_a_slower_kind_are_taken_there() -> None:
    fast = job("a", gpus=2, work=1e6, model="ResNet-50", batch_size=64)
    seen = snapshot([fast, job("b", gpus=3, kinds=("v100",))], "k80:1x4,v100:1x4")
    assert wished(seen, a=2) == {"v100": 1}, "its fastest kind is v100"
    assert wished(seen, a=Grant(2, kind="k80")) == {}


def test_a_running_job_lacks_gpus_of_the_kind_it_holds() -> None:
    rows = [job("a", gpus=4, min_gpus=1, max_gpus=4), job("b", gpus=3, kinds=("p100",))]
    held: dict[str, int | Placement] = {"a": Placement(((1, 1),)), "b": 3}
    assert wished(snapshot(rows, "k80:1x4,p100:1x4", held=held), a=1, b=3) == {"p100": 3}


def test_a_job_that_no_kind_can_hold_wishes_for_nothing_and_those_after_it_do() -> None:
    rows = [job("a", gpus=5), job("b", gpus=3, kinds=("p100",)), job("c", gpus=2, kinds=("p100",))]
    assert wished(snapshot(rows, "k80:1x4,p100:1x4")) == {"p100": 1}, "no kind has the five GPUs of a"


def test_needs_of_only_so_many_running_jobs_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [job("full", gpus=1), *(job(f"j{n}", gpus=2, min_gpus=1, max_gpus=4) for n in range(3))]
    granted = dict.fromkeys((row.id for row in rows), 1)
    seen = snapshot(rows, "k80:1x4", held=granted)
    assert wished(seen, **granted) == {"k80": 3}
    monkeypatch.setattr(growth, "_MOST_LOOKED_AT", 2)
    assert wished(seen, **granted) == {"k80": 2}, "those of jobs that can use no more do not count"


def adaptive(most: int = 64, submitted: float = 0.0) -> Job:
    limits = (128, 4096, 32, 1024)
    return job("a", submitted, 1, work=5e6, min_gpus=1, max_gpus=most, model="cifar10", batch_size=128, limits=limits)


def test_an_adaptive_job_that_has_reported_nothing_wishes_for_nothing() -> None:
    seen = snapshot([adaptive()], "t4:1x4", knowledge="online", now=3600.0, held={"a": 4})
    assert wished(seen, a=4) == {}


def seen_with(one: Job, granted: int, now: float = 3600.0) -> Snapshot:
    seen = snapshot([one], "t4:4x4", knowledge="online", now=now, held={"a": granted})
    return replace(seen, reports={seen.register.numbers["a"]: report(0.05)})


def test_an_adaptive_job_wishes_for_what_the_value_of_waiting_time_makes_worth_renting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[Any, ...]] = []

    def wanted(*given: Any) -> Any:
        asked.append(given)
        return None if len(asked) == 3 else (0, SimpleNamespace(rented=20 if len(asked) == 1 else 2))

    monkeypatch.setattr(growth, "wanted", wanted)
    seen = seen_with(adaptive(most=10, submitted=600.0), 4)
    assert wished(seen, a=4) == {"t4": 4}, "16 more, less 12 that are free"
    ((rule, need, offers, age),) = asked
    assert rule == ValueRule()
    assert need == Need(seen.specs[0], seen.report(0), rented=4)
    assert (offers, age) == ([NodeOffer("t4", 4, 3)], 3000.0)
    assert wished(seen, a=4) == {}, "fewer than it has are not wished for"
    full = snapshot([adaptive(), job("b", gpus=12)], "t4:4x4", knowledge="online", held={"a": 4, "b": 12})
    full = replace(full, reports={0: report(0.05)})
    assert wished(full, a=4, b=12) == {}, "none is worth it"
    assert len(asked) == 3
