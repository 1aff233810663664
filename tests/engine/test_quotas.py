"""Quotas of tenants: most GPUs, guarantees, borrowing and return, on the verdicts of any policy."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest
from tests.refusals import refusal

from shoal.core.decision import Decision, Grant, Refusal, Verdict, Verdicts
from shoal.core.errors import InputError
from shoal.core.goodput import GoodputReport
from shoal.core.job import ADAPTIVE, BatchSetting
from shoal.core.quota import NO_QUOTA, Quota, parse_quota
from shoal.core.snapshot import Snapshot
from shoal.engine.loop import Judgement, judge
from shoal.engine.moves import StopStartPlanner
from shoal.engine.quotas import ask_within_quotas
from shoal.placement.packed import PackedPlacer
from shoal.policy.classic.fifo import Fifo
from shoal.testing.builders import job, simulate, snapshot
from shoal.workload.schema import Job

REPORT = GoodputReport((), 9.0, 128, 4, BatchSetting(128))


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


@dataclass(frozen=True)
class Says:
    """Answers with these verdicts for the jobs it is asked about, and refuses the others."""

    verdicts: Mapping[str, Verdict]

    def decide(self, snapshot: Snapshot) -> Decision:
        return Decision({name: self.verdicts.get(name, Refusal()) for name in snapshot.jobs}, 77.0, "memory")


def jobs(tenant: str, count: int, gpus: int = 1, at: float = 0.0, **more: object) -> list[Job]:
    return [job(f"{tenant}{i}", at, gpus, 100, tenant=tenant, **more) for i in range(count)]


def judged(
    rows: list[Job],
    quotas: Mapping[str, Quota],
    cluster: str = "gpu:2x4",
    held: Mapping[str, int] | None = None,
    policy: Fifo | Wide | Says | None = None,
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


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("ann", "quotas: 'ann': write TENANT:queued=N,gpus=N,guaranteed=N"),
        ("ann:gpu=3", "quota of ann, option: 'gpu': unknown; did you mean gpus?"),
        ("ann:gpus=-1", "quota of ann: 'gpus=-1': gpus must be from 0 to 1,000,000, not -1"),
        ("ann:gpus=x", "quota of ann, option gpus: 'x': must be a whole number"),
        (
            "ann:gpus=2,guaranteed=3",
            "quota of ann: 'gpus=2,guaranteed=3': guaranteed (3) must not be above gpus (2), the most at once",
        ),
    ],
)
def test_a_quota_that_cannot_be_is_refused(text: str, sentence: str) -> None:
    with refusal(sentence):
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


def test_the_review_time_and_the_memory_of_the_policy_pass_through_quotas() -> None:
    judgement, _ = judged(jobs("ann", 3), {"ann": Quota(gpus=1)}, policy=Says({"ann0": Grant(1), "ann1": Grant(1)}))
    assert (judgement.decision.review_at, judgement.decision.carry) == (77.0, "memory")


def test_what_more_tenants_than_rounds_may_not_have_goes_to_others() -> None:
    rows = [row for n in range(12) for row in jobs(f"t{n}-", 2)] + jobs("zoe", 4)
    _, granted = judged(rows, {f"t{n}-": Quota(gpus=1) for n in range(12)}, "gpu:4x4")
    assert granted == {f"t{n}-0": 1 for n in range(12)} | {f"zoe{n}": 1 for n in range(4)}


def test_a_pair_that_shares_gpus_is_refused_whole_when_one_tenant_may_not_have_them() -> None:
    rows = [*jobs("ann", 1, 4, min_gpus=1, max_gpus=4), *jobs("bob", 1, 4), *jobs("cat", 1, 4)]
    pair = Says({"ann0": Grant(4, shared_with="bob0"), "bob0": Grant(4), "cat0": Grant(4)})
    judgement, granted = judged(rows, {"ann": Quota(gpus=3)}, policy=pair)
    assert granted == {"cat0": 4}
    waits = "waits: tenant ann runs 0 of its at most 3 GPUs"
    assert {name: judgement.verdicts[name].reason.sentence() for name in ("ann0", "bob0")} == {
        "ann0": waits,
        "bob0": waits,
    }


def test_a_pair_is_refused_whole_whichever_of_the_two_was_admitted_first() -> None:
    rows = [*jobs("bob", 1, 4), *jobs("ann", 1, 4, at=1.0, min_gpus=1, max_gpus=4)]
    pair = Says({"ann0": Grant(4, shared_with="bob0"), "bob0": Grant(4)})
    assert judged(rows, {"ann": Quota(gpus=3)}, policy=pair)[1] == {}


def test_an_adaptive_job_that_starts_by_a_guarantee_may_choose_its_batch_and_one_kind_needs_no_choice() -> None:
    rows = [*jobs("ann", 2, 4), job("bob0", 1, 4, work=5e6, tenant="bob", model="cifar10", batch_size=128,
                                    limits=(128, 4096, 32, 1024))]  # fmt: skip
    quotas = {"bob": Quota(guaranteed=4)}
    policy = Says({"ann0": Grant(4), "ann1": Grant(4)})
    moment = snapshot(rows, "t4:2x4", held={"ann0": 4, "ann1": 4}, quotas=quotas)
    _, verdicts = ask_within_quotas(policy, moment)
    assert verdicts.gpus.tolist() == [4, 0, 4]
    assert verdicts.kinds is None
    reported = replace(moment, reports={2: REPORT})
    assert ask_within_quotas(policy, reported)[1].batches == {2: ADAPTIVE}
    assert verdicts.batches == {}


def test_gpus_that_a_pair_shares_count_once_when_a_guarantee_is_taken() -> None:
    rows = [*jobs("ann", 2, 4), *jobs("bob", 1, 4)]
    pair = Says({"ann0": Grant(4, shared_with="ann1"), "ann1": Grant(4)})
    _, granted = judged(rows, {"bob": Quota(guaranteed=4)}, policy=pair)
    assert granted == {"ann0": 4, "ann1": 4, "bob0": 4}, "the other node is free"


def test_an_adaptive_job_that_shrinks_may_still_choose_its_batch() -> None:
    row = job("ann0", 0, 4, work=5e6, tenant="ann", min_gpus=1, max_gpus=8, model="cifar10", batch_size=128,
              limits=(128, 4096, 32, 1024))  # fmt: skip
    says = Says({"ann0": Grant(4, batch=ADAPTIVE)})
    judgement, granted = judged([row], {"ann": Quota(gpus=3)}, "t4:2x4", policy=says)
    shrunk = judgement.verdicts["ann0"]
    assert granted == {"ann0": 3}
    assert isinstance(shrunk, Grant)
    assert shrunk.batch == ADAPTIVE


def test_only_as_many_jobs_are_stopped_as_a_guarantee_needs() -> None:
    rows = [*jobs("ann", 1, 4), *jobs("bea", 2), *jobs("bob", 1, 5)]
    held = {"ann0": 4, "bea0": 1, "bea1": 1}
    judgement, granted = judged(rows, {"bob": Quota(guaranteed=5)}, "gpu:1x6", held=held)
    assert granted == {"bea1": 1, "bob0": 5}, "ann's gang and one job of bea hold five, the other need not stop"
    assert judgement.verdicts["bea0"].reason.sentence().endswith("were lent and are returned to tenant bob")


def test_gpus_left_over_of_the_second_kind_are_used_and_other_jobs_keep_the_placers_choice() -> None:
    old: dict[str, Any] = {"kinds": ("k80",)}
    rows = [*jobs("ann", 1, 4, **old), *jobs("bob", 1, 1, **old), *jobs("cat", 1, 3, **old), *jobs("dan", 1, 1)]
    says = Says({"ann0": Grant(4), "dan0": Grant(1)})
    judgement, granted = judged(
        rows, {"bob": Quota(guaranteed=1)}, "v100:1x4,k80:1x4", held={"ann0": 4, "dan0": 1}, policy=says
    )
    assert granted == {"bob0": 1, "cat0": 3, "dan0": 1}
    filled = judgement.verdicts["cat0"].reason.sentence()
    assert filled == "runs: it fits in 3 GPUs left over when lent GPUs were returned"
    kinds = judgement.decision.verdicts.kinds if isinstance(judgement.decision.verdicts, Verdicts) else None
    assert kinds is not None
    assert kinds.tolist() == [-1, 1, 1, -1]
