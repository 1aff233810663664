"""Apps that speak for themselves: what counts of it and for how long, what a lie is worth, and what they are told."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.bids import JobLeft, OnOffer, Rows, StandingBid, check_rows
from shoal.core.commands import Start
from shoal.core.decision import Verdicts
from shoal.core.errors import InputError
from shoal.core.events import AppBid, JobCompleted, JobSubmitted
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement, parse_cluster
from shoal.engine.state import State
from shoal.perf.app_valuation import Work, finish_seconds, row_seconds, valuation_rows
from shoal.perf.catalog import catalog
from shoal.perf.model import ProfiledModel
from shoal.policy.themis.carry import ThemisCarry
from shoal.policy.themis.policy import Themis
from shoal.testing.builders import job, snapshot
from shoal.workload.schema import Job


def said(moment: Snapshot, app: int, rows: Rows, at: float = 0.0) -> Snapshot:
    """The same moment, after an app said this of itself with the jobs it has."""
    jobs = tuple(moment.columns.rows[moment.columns.app == app].tolist())
    return replace(moment, bids={**moment.bids, app: StandingBid(at, jobs, rows)})


def awarded(moment: Snapshot, policy: Themis) -> list[int]:
    gpus: list[int] = Verdicts.of(moment, policy.decide(moment).verdicts).gpus.tolist()
    return gpus


def valuation(moment: Snapshot, app: int = 0) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    carry = Themis().decide(moment).carry
    assert isinstance(carry, ThemisCarry)
    kept = carry.histories[app].valuation
    assert kept is not None
    return kept.left


def trials(app: str, count: int, seconds: float, **more: object) -> list[Job]:
    return [job(f"{app}-{i}", 0, 1, seconds, app=app, **more) for i in range(count)]


# ── the words ─────────────────────────────────────────────────────────────────────────────────────────────────────


@given(
    st.lists(st.tuples(st.floats(1.0, 1e6), st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=5),
    st.integers(4, 40),
)
def test_a_valuation_has_the_same_values_after_encoding_and_decoding(
    jobs: list[tuple[float, int, int]], limit: int
) -> None:
    left = finish_seconds([[Work.linear(work, least, least + more)] for work, least, more in jobs], limit)
    rows = check_rows(valuation_rows(left), limit)
    counts = [gpus for gpus, _ in rows]
    assert row_seconds(rows, limit)[counts] == pytest.approx(left[counts])
    assert (row_seconds(rows, limit)[1:] <= left[1:] * (1 + 1e-9)).all()


def test_between_rows_the_last_counts_and_below_them_gpus_count_in_proportion() -> None:
    assert row_seconds(((2, 60.0), (4, 50.0)), 5).tolist() == [np.inf, 120.0, 60.0, 60.0, 50.0, 50.0]


@pytest.mark.parametrize(
    ("rows", "field", "value", "hint"),
    [
        ([], "rows", [], "at least one row"),
        ([(0, 1.0)], "rows[0][0]", 0, "from 1 to 8"),
        ([(9, 1.0)], "rows[0][0]", 9, "from 1 to 8"),
        ([(1, -5.0)], "rows[0][1]", -5.0, "above 0"),
        ([(1, float("nan"))], "rows[0][1]", None, "finite"),
        ([(1, 9.0), (1, 8.0)], "rows[1][0]", 1, "above the row before"),
        ([(1, 9.0), (2, 9.0)], "rows[1][1]", 9.0, "must fall: 1 GPUs already take 9 s"),
        ([(1, 9.0), (2, 10.0)], "rows[1][1]", 10.0, "must fall"),
        ([(1, 9.0), (2, 4.0)], "rows[1][1]", 4.0, "at least 4.5 s"),
    ],
)
def test_what_cannot_be_a_valuation_is_refused(
    rows: list[tuple[int, float]], field: str, value: object, hint: str
) -> None:
    with pytest.raises(InputError, match=hint) as refused:
        check_rows(rows, 8)
    assert refused.value.field == field
    assert value is None or refused.value.value == value


# ── what counts ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_bid_counts_while_the_app_has_the_jobs_it_bid_with() -> None:
    moment = snapshot([*trials("a", 4, 1000), *trials("b", 4, 1000)], "gpu:1x4")
    rows = ((1, 9000.0), (3, 4000.0))
    assert valuation(moment)[1:].tolist() == [4000.0, 2000.0, pytest.approx(4000 / 3), 1000.0]
    assert valuation(said(moment, 0, rows))[1:].tolist() == [9000.0, 9000.0, 4000.0, 4000.0]
    others = replace(moment, bids={0: StandingBid(0.0, (0, 1, 2), rows)})
    assert valuation(others).tolist() == valuation(moment).tolist()
    assert awarded(others, Themis()) == awarded(moment, Themis())


def test_an_app_that_says_more_gpus_do_not_help_is_not_given_them() -> None:
    moment = snapshot([*trials("a", 4, 1000), *trials("b", 4, 1000)], "gpu:1x4")
    modest = said(moment, 0, ((1, 4000.0),))
    verdicts = Verdicts.of(modest, Themis(f=0.0, rounding="floor").decide(modest).verdicts)
    # It bids for one and keeps it or not; the other for three. All else is handed out, to whoever can use it.
    assert "won 3 at auction" in verdicts["b-0"].reason.sentence()
    assert "won 3 at auction" not in verdicts["a-0"].reason.sentence()


@settings(max_examples=30, deadline=None)
@given(
    lie=st.floats(0.05, 20.0),
    jobs=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    seconds=st.lists(st.floats(100.0, 5000.0), min_size=4, max_size=4),
    seed=st.integers(0, 9),
)
def test_a_lie_is_worth_what_the_same_lie_about_its_jobs_work_is_worth(
    lie: float, jobs: list[int], seconds: Sequence[float], seed: int
) -> None:
    """So an app that speaks gains nothing by it that one whose bids are computed could not."""
    others = [row for n, count in enumerate(jobs[1:]) for row in trials(f"app-{n + 1}", count, seconds[n + 1])]
    true = replace(snapshot([*trials("liar", jobs[0], seconds[0]), *others], "gpu:1x4", now=2000.0), seed=seed)
    false = replace(snapshot([*trials("liar", jobs[0], seconds[0] * lie), *others], "gpu:1x4", now=2000.0), seed=seed)
    rows = valuation_rows(finish_seconds([[Work.linear(seconds[0] * lie, 1, 1)] * jobs[0]], min(4, jobs[0])))
    for policy in (Themis(), Themis(f=0.0), Themis(f=0.5, rounding="floor")):
        assert awarded(said(true, 0, rows), policy) == awarded(false, policy)


def test_a_bid_is_reduced_by_the_work_done_since() -> None:
    held = {"a-0": Placement(((0, 1),))}
    moment = snapshot(trials("a", 2, 1000), "gpu:1x2", held=held, now=500.0)
    left = 1.0 - moment.columns.done[0] / 2000.0
    assert left < 1.0
    spoken = said(moment, 0, ((1, 8000.0),), at=0.0)
    assert valuation(spoken)[1] == pytest.approx(8000.0 * left)


def test_a_bid_for_the_best_kind_counts_as_slower_on_another() -> None:
    moment = snapshot([job("a", 0, 1, app="a", model="ResNet-50", work=1e6)], "k80:1x1,v100:1x1")
    slow, fast = moment.columns.speeds[0]
    assert Themis().standing(moment, 0).kind == "v100"
    assert slow < fast
    # Kinds are auctioned in the operator's order: the slower one first, which it then has, and is not asked again.
    assert valuation(said(moment, 0, ((1, 100.0),)))[1] == pytest.approx(100.0 * fast / slow)


# ── what is told ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_app_gets_its_present_state_and_the_gpus_on_offer() -> None:
    rows = [*trials("a", 2, 1000), job("b", 0, 2, 500, app="b")]
    moment = snapshot(rows, "gpu:1x4,gpu:2x1")
    policy = Themis(f=0.0, rounding="floor")
    standing = policy.standing(replace(moment, carry=policy.decide(moment).carry), 0)
    assert (standing.kind, standing.most, standing.bid_in_force) == ("gpu", 2, False)
    assert standing.jobs == (JobLeft(0, 1.0, 1, (1000.0,)), JobLeft(1, 1.0, 1, (1000.0,)))
    assert standing.offers == (OnOffer("gpu", 6, ((4, 1), (1, 2)), 600.0),)
    assert standing.rho == pytest.approx(1000 / (2000 / 2 * 2))
    assert policy.standing(said(moment, 0, ((1, 9.0),)), 0).bid_in_force


def test_the_state_forgets_an_apps_bid_when_one_of_its_jobs_ends() -> None:
    state = State(parse_cluster("gpu:1x4"), ProfiledModel(parse_cluster("gpu:1x4"), catalog()))
    specs = [snapshot([row], "gpu:1x4").specs[0] for row in trials("a", 2, 100)]
    state.apply_events(0.0, [JobSubmitted(0.0, spec) for spec in specs])
    state.apply_events(1.0, [AppBid(1.0, "a", (0, 1), ((1, 5.0),))])
    before = state.freeze()
    assert before.bids == {0: StandingBid(1.0, (0, 1), ((1, 5.0),))}
    state.apply_commands([Start(0, 1, Placement(((0, 1),)))])
    state.apply_events(3.0, [JobCompleted(3.0, 0, 1, 100.0)])
    assert state.freeze().bids == {}
    assert before.bids
