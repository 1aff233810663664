"""Quotas of tenants: most GPUs, guarantees, borrowing and return, on the verdicts of any policy."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from shoal.core.decision import Decision, Grant, Refusal, Verdict
from shoal.core.errors import InputError
from shoal.core.quota import NO_QUOTA, Quota, parse_quota
from shoal.core.snapshot import Snapshot
from shoal.engine.loop import Judgement, judge
from shoal.engine.moves import StopStartPlanner
from shoal.placement.packed import PackedPlacer
from shoal.policy.classic.fifo import Fifo
from shoal.testing.builders import job, simulate, snapshot
from shoal.workload.schema import Job


@dataclass(frozen=True)
class Wide:
    """Grants every job, in order of admission, as many GPUs as it can use."""

    def decide(self, snapshot: Snapshot) -> Decision:
        verdicts: dict[str, Verdict] = {}
        left = snapshot.cluster.total_gpus
        for name, view in snapshot.jobs.items():
            gpus = min(left, view.spec.max_gpus)
            verdicts[name] = Grant(gpus) if gpus >= view.spec.min_gpus else Refusal()
            left -= gpus if gpus >= view.spec.min_gpus else 0
        return Decision(verdicts)


def jobs(tenant: str, count: int, gpus: int = 1, at: float = 0.0, **more: object) -> list[Job]:
    return [job(f"{tenant}{i}", at, gpus, 100, tenant=tenant, **more) for i in range(count)]


def judged(
    rows: list[Job],
    quotas: Mapping[str, Quota],
    cluster: str = "gpu:2x4",
    held: Mapping[str, int] | None = None,
    policy: Fifo | Wide | None = None,
) -> tuple[Judgement, dict[str, int]]:
    moment = snapshot(rows, cluster, held=held or {}, quotas=quotas)
    judgement = judge(moment, policy or Fifo(), PackedPlacer(), StopStartPlanner())
    granted = {name: n for name, n in zip(moment.ids, judgement.verdicts.gpus.tolist(), strict=True) if n}
    return judgement, granted


def test_what_a_tenant_may_not_have_goes_to_others_and_its_jobs_say_so() -> None:
    rows = jobs("ann", 10) + jobs("bob", 4, 2)
    judgement, granted = judged(rows, {"ann": Quota(gpus=2)})
    assert granted == {"ann0": 1, "ann1": 1, "bob0": 2, "bob1": 2, "bob2": 2}
    assert judgement.verdicts["ann2"].reason.sentence() == "waits: tenant ann runs 2 of its at most 2 GPUs"


def test_a_job_wider_than_its_tenants_most_blocks_neither_its_tenant_nor_others() -> None:
    rows = [job("wide", 0, 4, 100, tenant="ann"), *jobs("ann", 3, 1, at=1.0), *jobs("bob", 1, 2, at=2.0)]
    judgement, granted = judged(rows, {"ann": Quota(gpus=2)}, "gpu:1x4")
    assert granted == {"ann0": 1, "ann1": 1, "bob0": 2}
    said = "cannot run: needs 4 GPUs; its tenant ann has at most 2 at once"
    assert judgement.verdicts["wide"].reason.sentence() == said


def test_a_job_that_waits_for_its_tenants_quota_does_not_block_a_strict_queue() -> None:
    rows = [*jobs("ann", 2, 2), *jobs("bob", 2, 1, at=1.0)]
    judgement, granted = judged(rows, {"ann": Quota(gpus=2)}, "gpu:1x3", held={"ann0": 2})
    assert granted == {"ann0": 2, "bob0": 1}
    assert judgement.verdicts["ann1"].reason.sentence() == "waits: tenant ann runs 2 of its at most 2 GPUs"


def test_a_tenant_at_its_most_keeps_what_runs() -> None:
    rows = jobs("ann", 4, 2)
    _, granted = judged(rows, {"ann": Quota(gpus=4)}, held={"ann2": 2, "ann3": 2})
    assert granted == {"ann2": 2, "ann3": 2}


def test_a_lowered_most_stops_running_jobs() -> None:
    _, granted = judged(jobs("ann", 2, 4), {"ann": Quota(gpus=4)}, held={"ann0": 4, "ann1": 4})
    assert granted == {"ann0": 4}


def test_an_elastic_job_shrinks_to_what_its_tenant_may_have() -> None:
    rows = jobs("ann", 1, 4, min_gpus=1, max_gpus=8)
    judgement, granted = judged(rows, {"ann": Quota(gpus=3)}, policy=Wide())
    assert granted == {"ann0": 3}
    assert judgement.verdicts["ann0"].reason.sentence() == "runs on 3 GPUs: tenant ann has at most 3"


def test_idle_gpus_of_a_guarantee_are_lent_and_returned_on_demand_in_one_decision() -> None:
    quotas = {"bob": Quota(guaranteed=3)}
    ann = jobs("ann", 8)
    assert sum(judged(ann, quotas)[1].values()) == 8, "nothing is kept idle"
    held = {f"ann{i}": 1 for i in range(8)}
    judgement, granted = judged(ann + jobs("bob", 5), quotas, held=held)
    assert {n: g for n, g in granted.items() if n.startswith("bob")} == {"bob0": 1, "bob1": 1, "bob2": 1}
    assert sum(granted.values()) == 8
    assert judgement.verdicts["ann7"].reason.sentence().endswith("were lent and are returned to tenant bob")
    assert judgement.verdicts["bob0"].reason.sentence() == "runs: its tenant bob has 3 GPUs guaranteed"
    assert len(judgement.commands) == 6, "three stops and three starts, no other job moves"


def test_a_lender_does_not_lose_its_own_guarantee() -> None:
    quotas = {"ann": Quota(guaranteed=6), "bob": Quota(guaranteed=6)}
    held = {f"ann{i}": 1 for i in range(8)}
    _, granted = judged(jobs("ann", 8) + jobs("bob", 8), quotas, held=held)
    assert sum(n for name, n in granted.items() if name.startswith("ann")) == 6


def test_a_wide_gang_that_borrows_is_stopped_and_what_is_left_over_is_used() -> None:
    rows = jobs("ann", 1, 8) + jobs("bob", 1, 2, at=1.0) + jobs("cat", 3, 2, at=2.0)
    judgement, granted = judged(rows, {"bob": Quota(guaranteed=2)}, held={"ann0": 8})
    assert granted == {"bob0": 2, "cat0": 2, "cat1": 2, "cat2": 2}
    assert (
        judgement.verdicts["cat0"].reason.sentence() == "runs: it fits in 6 GPUs left over when lent GPUs were returned"
    )


def test_a_guarantee_is_taken_on_a_kind_that_the_job_can_use() -> None:
    rows = jobs("ann", 4, 2) + jobs("bob", 1, 2, kinds=("k80",))
    held = {f"ann{i}": 2 for i in range(4)}
    _, granted = judged(rows, {"bob": Quota(guaranteed=2)}, "v100:1x4,k80:1x4", held=held)
    assert granted["bob0"] == 2
    assert len(granted) == 4


def test_every_job_ends_under_quotas_and_equal_runs_are_equal() -> None:
    rows = jobs("ann", 12, 2) + jobs("bob", 6, 1, at=50.0)
    quotas = {"ann": Quota(gpus=6), "bob": Quota(guaranteed=4)}
    first, second = (simulate(Fifo(), rows, "gpu:2x4", quotas=quotas) for _ in range(2))
    assert len(first.completed) == 18
    assert first.journal.records == second.journal.records


def test_a_quota_is_read_as_it_is_written() -> None:
    quota = Quota(10, 8, 4)
    assert parse_quota(quota.describe("ann")) == ("ann", quota)
    assert parse_quota(NO_QUOTA.describe("ann")) == ("ann", NO_QUOTA)


@pytest.mark.parametrize("text", ["ann", "ann:gpu=3", "ann:gpus=-1", "ann:gpus=2,guaranteed=3", "ann:gpus=x"])
def test_a_quota_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_quota(text)


def test_what_a_quota_says_about_a_bad_value_names_the_tenant_or_the_text() -> None:
    with pytest.raises(InputError) as refused:
        parse_quota("gpus=2")
    assert (refused.value.field, refused.value.value) == ("quotas", "gpus=2")
    assert parse_quota("a:b:queued=0,gpus=1000000") == ("a:b", Quota(0, 1_000_000, 0))
    for fields in ({"queued": 1_000_001}, {"gpus": -1}, {"guaranteed": -1}, {"gpus": 1, "guaranteed": 2}):
        with pytest.raises(ValueError, match=list(fields)[-1]):
            Quota(**fields)
    assert Quota(gpus=2, guaranteed=2).guaranteed == 2


def test_each_tenant_over_its_most_is_cut_apart_from_the_others() -> None:
    rows = [*jobs("ann", 2, 2, min_gpus=1, max_gpus=4), *jobs("bob", 1, 2, min_gpus=2, max_gpus=4), *jobs("cat", 1)]
    quotas = {"ann": Quota(gpus=3), "bob": Quota(gpus=2), "dan": Quota(gpus=0)}
    judgement, granted = judged(rows, quotas, "gpu:4x4", policy=Wide())
    assert granted == {"ann0": 3, "bob0": 2, "cat0": 1}
    assert {name: v.reason.sentence() for name, v in judgement.verdicts.items() if name != "cat0"} == {
        "ann0": "runs on 3 GPUs: tenant ann has at most 3",
        "ann1": "waits: tenant ann runs 3 of its at most 3 GPUs",
        "bob0": "runs on 2 GPUs: tenant bob has at most 2",
    }
