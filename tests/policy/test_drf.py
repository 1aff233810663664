"""Dominant resource fairness over tenants."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.decision import Grant
from shoal.policy.classic.drf import Drf
from shoal.testing.builders import job, simulate, snapshot


def held(policy: Drf, *args: object, **more: object) -> Counter[str]:
    """GPUs granted by tenant."""
    moment = snapshot(*args, **more)  # type: ignore[arg-type]
    counts: Counter[str] = Counter()
    for name, verdict in policy.decide(moment).verdicts.items():
        if isinstance(verdict, Grant):
            counts[moment.jobs[name].spec.tenant] += verdict.gpus
    return counts


def test_two_tenants_are_levelled_by_hand() -> None:
    # 8 GPUs. x asks one by one, y by twos: filling stops at 4 and 4. y's first two are done at 50 and its other two
    # take their place, since y then holds nothing and x half; at 100 all are done, and x's last four run 100–200.
    rows = [job(f"x{i}", 0, 1, 100, tenant="x") for i in range(8)]
    rows += [job(f"y{i}", 0, 2, 50, tenant="y") for i in range(4)]
    run = simulate(Drf(), rows, "gpu:1x8")
    expected = {f"x{i}": 100.0 if i < 4 else 200.0 for i in range(8)} | {
        "y0": 50.0,
        "y1": 50.0,
        "y2": 100.0,
        "y3": 100.0,
    }
    assert run.completed == expected
    first = run.cycles[0]
    assert (
        first.sentence("x4")
        == "waits: its tenant's weighted dominant share is 0.5; jobs with up to 0.375 go first and take the GPUs"
    )


def test_weights_scale_shares() -> None:
    rows = [job(f"x{i}", 0, 1, tenant="x", weight=3.0) for i in range(8)]
    rows += [job(f"y{i}", 0, 1, tenant="y") for i in range(8)]
    assert held(Drf(), rows, "gpu:1x8") == {"x": 6, "y": 2}


def test_a_share_is_of_the_kind_a_tenant_uses_most_of() -> None:
    # 4 v100 and 8 k80. x can use v100 only, y k80 only, z both. Each v100 is a quarter, each k80 an eighth: x, z and y
    # rise together. z takes v100 first, since it is faster: x 2 v100 (1/2), z 2 v100 (1/2), y up to all it asks, 6 k80.
    rows = [job(f"x{i}", 0, 1, tenant="x", kinds=("v100",)) for i in range(4)]
    rows += [job(f"y{i}", 0, 1, tenant="y", kinds=("k80",)) for i in range(6)]
    rows += [job(f"z{i}", 0, 1, tenant="z", model="ResNet-18", work=1e6) for i in range(4)]
    counts = held(Drf(), rows, "v100:1x4,k80:1x8")
    assert counts == {"x": 2, "y": 6, "z": 4}


def test_a_new_tenant_gets_its_share_when_the_round_ends() -> None:
    rows = [job(f"x{i}", 0, 1, 2000, tenant="x") for i in range(4)]
    rows += [job(f"y{i}", 10, 1, 2000, tenant="y") for i in range(4)]
    run = simulate(Drf(round=100.0), rows, "gpu:1x4")
    assert run.cycles[1].sentence("x0") == "keeps its GPUs: its lease runs until t = 100 s"
    at_100 = next(c for c in run.cycles if c.now == 100.0)
    assert sorted(at_100.granted()) == ["x0", "x1", "y0", "y1"]


def test_more_tenants_than_gpus_take_turns() -> None:
    rows = [job(t, 0, 1, 1000, tenant=t) for t in "abc"]
    run = simulate(Drf(round=100.0), rows, "gpu:1x1", until=299.0)
    assert [list(cycle.granted()) for cycle in run.cycles[:3]] == [["a"], ["b"], ["c"]]


def test_a_gang_that_does_not_fit_does_not_hold_up_its_tenant() -> None:
    # x's first job needs 4; y holds one, so x's second runs.
    rows = [job("y", 0, 1, tenant="y"), job("x0", 0, 4, tenant="x"), job("x1", 0, 2, tenant="x")]
    moment = snapshot(rows, "gpu:1x4")
    verdicts = Drf().decide(moment).verdicts
    assert [type(v) is Grant for v in verdicts.values()] == [True, False, True]
    assert verdicts["x0"].reason.sentence().startswith("waits")


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 24), st.lists(st.integers(0, 20), min_size=1, max_size=6))
def test_single_gpu_jobs_are_shared_max_min(gpus: int, demands: list[int]) -> None:
    rows = [job(f"t{t}-{i}", 0, 1, tenant=f"t{t}") for t, n in enumerate(demands) for i in range(n)]
    counts = held(Drf(), rows, f"gpu:1x{gpus}")
    assert sum(counts.values()) == min(gpus, sum(demands))
    most = max(counts.values(), default=0)
    for t, demand in enumerate(demands):
        # Whoever has less than the most, by more than the one GPU that cannot be split, has all it asks for.
        assert counts[f"t{t}"] == demand or counts[f"t{t}"] >= most - 1


def test_a_round_below_a_second_is_refused() -> None:
    with pytest.raises(ValueError, match="round"):
        Drf(round=0.1)
