"""The control plane through its desk: what is acknowledged is kept, who may see what, and what people are told."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from tests.refusals import refusal

from shoal.core.errors import InputError
from shoal.core.events import JobSubmitted
from shoal.core.job import JobSpec
from shoal.core.lifecycle import JobState
from shoal.core.quota import Quota
from shoal.core.topology import Node, parse_cluster, topology_of
from shoal.live.accounts import Accounts
from shoal.live.control_plane import ControlPlane, UnknownJob
from shoal.live.home import JOURNAL, Settings, grown, open_control_plane
from shoal.live.quotas import QueueLimit
from shoal.scenario.replay import policies_of, read_stories, replay_file
from shoal.scenario.scenario import Scenario
from shoal.store.journal import JournalFile, SqliteJournal
from shoal.wire.app_messages import AppBidMessage
from shoal.wire.messages import (
    PROTOCOL,
    AgentOrders,
    AgentReport,
    Hello,
    LogAnswer,
    LogPart,
    NewSession,
    QuotaMessage,
    RankExit,
    Reshape,
    RunOrder,
    RunReport,
    Submission,
)

BROKEN = '''
class Broken:
    """Fails whenever there is anybody to decide on."""

    def decide(self, snapshot):
        return 1 / 0
'''


def settings(folder: Path, cluster: str = "gpu:2x2", policy: str = "fifo", lease: float = 20.0) -> Settings:
    return Settings(folder / "home", Scenario(parse_cluster(cluster), policy), lease=lease, first_retry=0.2)


@contextmanager
def opened(folder: Path, cluster: str = "gpu:2x2", policy: str = "fifo", lease: float = 20.0) -> Iterator[ControlPlane]:
    with open_control_plane(settings(folder, cluster, policy, lease)) as plane:
        for node in parse_cluster(cluster).nodes:
            plane.hello(Hello(PROTOCOL, node.name, "boot", node.kind, node.gpus, "127.0.0.1"))
        soon(lambda: plane.cluster().up_gpus >= parse_cluster(cluster).total_gpus)
        yield plane


def soon(happens: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not happens():
        assert time.monotonic() < deadline, "did not happen"
        time.sleep(0.005)


def job(name: str = "job", gpus: int = 1, **fields: object) -> Submission:
    return Submission(command=["train"], name=name, gpus=gpus, **fields)  # type: ignore[arg-type]


def submit(plane: ControlPlane, *jobs: Submission, tenant: str = "ann") -> list[str]:
    return plane.submit(jobs, tenant).result(20)


def state(plane: ControlPlane, id: str) -> str:
    return plane.job(id, None).job.state


def sync(plane: ControlPlane, node: str, runs: list[RunReport]) -> AgentOrders:
    return plane.sync(AgentReport(protocol=PROTOCOL, node=node, boot="boot", known=0, runs=runs))


def obey(plane: ControlPlane, node: str, statuses: tuple[int, ...] = ()) -> list[RunOrder]:
    """As an agent whose ranks run, or have ended with these statuses."""
    soon(lambda: bool(sync(plane, node, []).runs))
    orders = sync(plane, node, []).runs
    exits = [RankExit(rank, status) for rank, status in enumerate(statuses)]
    phase = "ended" if statuses else "running"
    sync(plane, node, [
        RunReport(job=o.job, incarnation=o.incarnation, phase=phase, exits=exits) for o in orders  # type: ignore[arg-type]
    ])  # fmt: skip
    return orders


def cancel(plane: ControlPlane, id: str) -> None:
    """Cancel a job; agents report the runs that are told to stop as ended."""
    plane.cancel(id, None).result(20)

    def gone() -> bool:
        for node in (row for row in plane.nodes(None) if row.up):
            runs = [run for run in sync(plane, node.name, []).runs if run.phase == "stop"]
            sync(plane, node.name, [RunReport(job=r.job, incarnation=r.incarnation, phase="ended") for r in runs])
        return id not in [row.id for row in plane.jobs(None)]

    soon(gone)


def test_what_was_acknowledged_is_there_when_the_journal_is_taken_up_again(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        ids = submit(plane, job("a", 2), job("b", 4), job("c"))
        obey(plane, "gpu-0")
        soon(lambda: state(plane, ids[0]) == "running")
    with opened(tmp_path) as plane:
        rows = {row.id: row for row in plane.jobs(None)}
        assert list(rows) == ids
        assert [rows[id].state for id in ids] == ["running", "pending", "pending"]
        assert plane.job(ids[0], None).command == ["train"]
    derived, _, _ = replay_file(tmp_path / "home" / JOURNAL)
    assert derived.decisions > 0


def test_the_same_key_is_the_same_job_also_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        first = submit(plane, job(key="k1"), job(key="k2"))
        assert submit(plane, job(key="k2"), job(key="k1")) == first[::-1]
        other = submit(plane, job(key="k1"), tenant="bob")
        assert other[0] not in first
    with opened(tmp_path) as plane:
        assert submit(plane, job(key="k1")) == first[:1]
        assert len(plane.jobs(None)) == 3


def test_a_batch_with_one_bad_job_admits_none(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        with pytest.raises(InputError) as refused:
            plane.submit([job(), job(gpus=5)], "ann")
        assert (refused.value.field, refused.value.value) == ("jobs[1].gpus", 5)
        assert plane.jobs(None) == []


def test_a_bad_job_is_refused_by_field_and_says_which_of_several_it_is(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        with refusal("gpus: 5: the most this cluster has of one kind is 4"):
            submit(plane, job(gpus=5))
        with refusal("jobs[1].kinds: 'h100': unknown; choose one of gpu"):
            submit(plane, job(), job(kinds=["h100"]))
        with refusal("jobs[0].workdir: 'here': must be an absolute path"):
            submit(plane, job(workdir="here"), job())
        assert plane.jobs(None) == []


def test_a_tenant_learns_nothing_of_anothers_jobs(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        (theirs,) = submit(plane, job("secret", 4), tenant="bob")
        (mine,) = submit(plane, job("mine", 3), tenant="ann")
        (later,) = submit(plane, job("later", 1), tenant="ann")
        assert [row.id for row in plane.jobs("ann", ended=True)] == [mine, later]
        for asked in (theirs, "secret-zzzzz"):
            with pytest.raises(UnknownJob, match=asked):
                plane.job(asked, "ann")
            with pytest.raises(UnknownJob):
                plane.cancel(asked, "ann")
            with pytest.raises(UnknownJob):
                plane.reshape(asked, Reshape(1), "ann")
            with pytest.raises(UnknownJob):
                plane.open_session(asked, "ann", NewSession(command=["sh"]), "ann")
            with pytest.raises(UnknownJob):
                plane.read_log(asked, "ann", incarnation=None, rank=0, offset=0, most=10)
        seen = repr(
            [plane.jobs("ann"), plane.nodes("ann"), plane.share("ann"), plane.acct("ann"), plane.job(mine, "ann")]
        )
        assert theirs not in seen
        assert "bob" not in seen
        assert [row.tenant for row in plane.share("ann")] == ["ann", "others"]


def test_a_sentence_names_no_job_of_another_tenant(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        submit(plane, job("runs", 3), tenant="bob")
        (head,) = submit(plane, job("head", 4), tenant="bob")
        (mine,) = submit(plane, job("mine", 1), tenant="ann")
        soon(lambda: head in plane.job(mine, None).decision)
        assert "another job is first" in plane.job(mine, "ann").decision
        assert head not in repr(plane.job(mine, "ann"))


def test_why_says_what_holds_a_job_and_what_would_change_it(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        first, second = submit(plane, job("first", 3, work=100.0), job("second", 4))
        obey(plane, "gpu-0")
        obey(plane, "gpu-1")
        detail = plane.job(second, None)
        assert detail.decision == "waits: needs 4 GPUs; 1 left when its turn comes"
        assert detail.change == (
            "it would start when 3 GPUs more come free: 1 job holds GPUs there, the next is expected to end in 100 s"
        )
        assert [moment.what for moment in detail.story] == ["submitted by ann", detail.decision]
        assert plane.job(first, None).change == ""


def test_why_says_that_an_app_waits_for_admission_and_what_is_requested(tmp_path: Path) -> None:
    with opened(tmp_path, policy="themis:admit=1") as plane:
        first, second = submit(plane, job("first", 3, work=100.0), job("second", 2))
        obey(plane, "gpu-0")
        obey(plane, "gpu-1")
        assert plane.job(second, None).decision == (
            "waits for admission: its app requests 2 GPUs, the admitted apps request 3, and together they may request "
            "4; apps are admitted in order of arrival"
        )
        assert "won 3 at auction" in plane.job(first, None).decision


def test_a_job_that_dies_is_held_back_tried_again_and_at_last_set_aside_with_its_story(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x2") as plane:
        (id,) = submit(plane, job(retries=2))
        for attempt in range(1, 4):
            soon(lambda: bool(sync(plane, "gpu-0", []).runs))
            (order,) = obey(plane, "gpu-0", (7,))
            assert order.incarnation == attempt
            soon(lambda: state(plane, id) in ("held", "failed"))
            if attempt == 1:
                assert "exited with status 7" in plane.job(id, None).decision
            soon(lambda: not sync(plane, "gpu-0", []).runs or state(plane, id) != "held")
        soon(lambda: state(plane, id) == "failed")
        detail = plane.job(id, None)
        last = "not tried again, since it crashed 3 times in a row and has 2 retries"
        assert detail.job.reason == f"rank 0 on gpu-0 exited with status 7; {last}"
        assert sum("crashed:" in moment.what for moment in detail.story) == 3
        assert plane.acct(None)[0].state == "failed"


def test_a_job_is_reshaped_within_the_gpus_of_its_kinds(tmp_path: Path) -> None:
    with opened(tmp_path, "v100:1x4,k80:1x2") as plane:
        (id,) = submit(plane, job("a", 1, kinds=["k80"]))
        with refusal("gpus: 3: the most this cluster has of k80 is 2"):
            plane.reshape(id, Reshape(3), None)
        plane.reshape(id, Reshape(2), None).result(20)
        soon(lambda: plane.job(id, None).job.gpus_wanted == 2)


def test_a_cluster_that_grew_has_the_prices_of_before_and_the_new_ones() -> None:
    nodes = (Node("a", "v100", 4), Node("b", "k80", 4))
    before = topology_of(nodes[:1], {"v100": 2.0})
    assert [each.price_per_hour for each in grown(before, topology_of(nodes, {"k80": 0.5})).types] == [2.0, 0.5]
    assert [each.price_per_hour for each in grown(before, topology_of(nodes, {"v100": 3.0})).types] == [3.0, None]


def test_a_reshaped_job_is_seated_anew(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        (id,) = submit(plane, job("a", 4))
        obey(plane, "gpu-0")
        plane.reshape(id, Reshape(1), None).result(20)
        soon(lambda: plane.job(id, None).job.gpus_held == 1)
        with refusal("gpus: 9: the most this cluster has of one kind is 4"):
            plane.reshape(id, Reshape(9), None)
        plane.cancel(id, None).result(20)
        for now in ("cancelling", "cancelled"):
            with refusal(f"job: {id!r}: is {now}: a job that has ended or was cancelled cannot be resized"):
                plane.reshape(id, Reshape(2), None)
            cancel(plane, id)


def test_the_gpus_of_a_cancelled_run_are_its_owners_until_it_has_ended(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x2") as plane:
        (first,) = submit(plane, job("first", 2, grace=60.0))
        obey(plane, "gpu-0")
        soon(lambda: state(plane, first) == "running")
        (second,) = submit(plane, job("second", 2), tenant="bob")
        plane.cancel(first, None).result(20)
        (third,) = submit(plane, job("third", 2), tenant="bob")  # calls for a decision
        rows = {row.id: row for row in plane.jobs(None)}
        by = time.strftime("%H:%M", time.localtime(time.time() + 60))
        assert (rows[first].state, rows[first].gpus_held) == ("cancelling", 2)
        assert rows[first].reason[:-3] == f"cancelled, ends by {by}" == plane.job(first, None).decision[:-3]
        wait = "waits: needs 2 GPUs, 0 free; runs of cancelled jobs still hold 2"
        assert (rows[second].state, rows[second].reason) == ("pending", wait)
        assert {row.tenant: row.held for row in plane.share(None)} == {"ann": 2, "bob": 0}
        assert (plane.cluster().running, plane.cluster().waiting, plane.cluster().used_gpus) == (1, 2, 2)
    with opened(tmp_path, "gpu:1x2") as plane:  # a restart changes nothing of that
        assert [order.phase for order in sync(plane, "gpu-0", []).runs] == ["stop"]
        assert (state(plane, first), state(plane, second)) == ("cancelling", "pending")
        charged = plane.job(first, None).gpu_seconds
        obey(plane, "gpu-0", (-15,))
        soon(lambda: state(plane, second) == "starting")
        assert state(plane, first) == "cancelled"
        assert plane.job(first, None).gpu_seconds >= charged > 0
        assert [moment.what for moment in plane.job(first, None).story if "cancelled" in moment.what] == [
            "cancelled; warned to save and stop",
            "ended, after it was cancelled",
        ]
        assert state(plane, third) == "pending"
    assert replay_file(tmp_path / "home" / JOURNAL)[0].decisions > 0


def test_where_a_policy_fails_all_jobs_stay_with_the_reason_and_the_journal_replays(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    with opened(tmp_path, policy=f"{tmp_path}/broken.py:Broken") as plane:
        (id,) = submit(plane, job())
        assert plane.job(id, None).decision == "waits: the policy failed (ZeroDivisionError: division by zero)"
        assert plane.failed is None
    derived, _, _ = replay_file(tmp_path / "home" / JOURNAL, policy_files=[f"{tmp_path}/broken.py:Broken"])
    assert derived.decisions > 0


POISONED = '''
from shoal.policy.classic.fifo import Fifo


class Poisoned:
    """Fifo that never ends its decision on a job of weight 7."""

    def decide(self, snapshot):
        while (snapshot.columns.weight == 7.0).any():
            pass
        return Fifo().decide(snapshot)
'''


def test_a_job_on_which_the_policy_never_ends_is_set_aside_and_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("DECISION_SECONDS", "_LEAST_PROBE"):
        monkeypatch.setattr(f"shoal.engine.guard.{limit}", 0.1)
    (tmp_path / "poisoned.py").write_text(POISONED)
    with opened(tmp_path, policy=f"{tmp_path / 'poisoned.py'}:Poisoned") as plane:
        bad, good = submit(plane, job("bad", weight=7.0), job("good"))
        soon(lambda: state(plane, good) == "starting")
        found = plane.job(bad, None)
        assert "set aside, since the policy cannot decide with it" in found.decision
        assert any("set aside: the policy took more than" in moment.what for moment in found.story)
        plane.cancel(bad, "ann").result(20)
    with opened(tmp_path, policy="fifo") as plane:
        assert state(plane, good) == "starting"
    journal = tmp_path / "home" / JOURNAL
    assert [policy.rpartition("/")[2] for policy, _ in policies_of(journal)] == ["poisoned.py:Poisoned", "fifo"]
    derived, _, _ = replay_file(journal, policy_files=[f"{tmp_path / 'poisoned.py'}:Poisoned"])
    assert derived.decisions > 0


def test_a_policy_file_that_a_journal_names_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    with opened(tmp_path, policy=f"{tmp_path}/broken.py:Broken") as plane:
        submit(plane, job())
    (tmp_path / "broken.py").write_text("raise SystemExit('imported')")
    journal = tmp_path / "home" / JOURNAL
    with pytest.raises(InputError, match=r"broken.py:Broken, which is not imported from a journal: give --policy"):
        replay_file(journal)
    stories, difference = read_stories(journal)
    assert (len(stories), "is not imported" in difference) == (1, True)


def test_a_restart_with_fewer_nodes_shows_the_present_cluster(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:3x2") as plane:
        submit(plane, job("a", 2))
        obey(plane, "gpu-0")
    with opened(tmp_path, "gpu:2x2") as plane:
        assert (plane.cluster().cluster, plane.cluster().up_gpus) == ("gpu:2x2", 4)
        assert [row.name for row in plane.nodes(None)] == ["gpu-0", "gpu-1"]
        with refusal("gpus: 6: the most this cluster has of one kind is 4"):
            submit(plane, job("wide", 6))
    with opened(tmp_path, "gpu:3x2") as plane:
        assert [row.up for row in plane.nodes(None)] == [True, True, True]
    derived, _, _ = replay_file(tmp_path / "home" / JOURNAL)
    assert derived.decisions > 0


def test_quotas_bound_what_waits_and_runs_and_outlive_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        plane.set_quota(QuotaMessage(tenant="ann", queued=2, gpus=1)).result(20)
        first, second = submit(plane, job("a"), job("b"))
        soon(lambda: plane.job(first, None).job.state == "starting")
        assert plane.job(second, None).decision == "waits: tenant ann runs 1 of its at most 1 GPU"
        assert plane.job(second, None).change.startswith("it would start when a job of its tenant ends")
        submit(plane, job("c"))
        with refusal(
            "tenant: 'ann': it has 2 waiting jobs and may have 2: wait for some to start, cancel some, or"
            " ask an operator for more (`shoal quota`)"
        ):
            submit(plane, job("d"))
        submit(plane, job("e"), tenant="bob")
        (row,) = plane.share("bob")[:1]
        assert (row.tenant, row.most) == ("bob", None)
    with opened(tmp_path) as plane:
        assert plane.quotas() == [QuotaMessage(tenant="ann", queued=2, gpus=1)]
        rows = {row.tenant: row for row in plane.share(None)}
        assert (rows["ann"].held, rows["ann"].most, rows["bob"].held) == (1, 1, 1)
        plane.set_quota(QuotaMessage(tenant="ann", guaranteed=4)).result(20)
        soon(lambda: plane.share("ann")[0].held == 3)
        plane.set_quota(QuotaMessage(tenant="ann")).result(20)
        assert plane.quotas() == []
    derived, _, _ = replay_file(tmp_path / "home" / JOURNAL)
    assert derived.decisions > 0


def test_a_quota_that_guarantees_more_than_it_allows_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        with refusal("guaranteed: 2: guaranteed (2) must not be above gpus (1), the most at once"):
            plane.set_quota(QuotaMessage(tenant="ann", gpus=1, guaranteed=2))
        assert plane.quotas() == []


def test_jobs_on_their_way_to_the_journal_count_as_waiting() -> None:
    accounts, limit, durable = Accounts(()), QueueLimit(), Future[None]()
    accounts.quotas["ann"] = Quota(queued=1)
    spec = JobSpec("a", 0.0, 1, None, 1, 1, tenant="ann")
    limit.check(accounts, [spec])
    limit.count([spec], durable)
    with refusal(
        "tenant: 'ann': it has 1 waiting job and may have 1: wait for some to start, cancel some, or ask "
        "an operator for more (`shoal quota`)"
    ):
        limit.check(accounts, [spec])
    durable.set_result(None)
    limit.check(accounts, [spec])


def test_jobs_in_the_accounts_that_are_not_durable_yet_count_once() -> None:
    accounts, limit, durable = Accounts(()), QueueLimit(), Future[None]()
    accounts.quotas["ann"] = Quota(queued=2)
    spec = JobSpec("a", 0.0, 1, None, 1, 1, tenant="ann")
    limit.count([spec], durable)
    accounts.apply_events([JobSubmitted(0.0, spec)])
    limit.check(accounts, [replace(spec, id="b")])
    with refusal(
        "tenant: 'ann': it has 1 waiting job and may have 2: wait for some to start, cancel some, or ask "
        "an operator for more (`shoal quota`)"
    ):
        limit.check(accounts, [replace(spec, id="b"), replace(spec, id="c")])


def test_two_control_planes_cannot_share_a_home(tmp_path: Path) -> None:
    hint = "another control plane runs here: stop it, or set SHOAL_HOME to another folder"
    with opened(tmp_path), refusal(f"home: '{tmp_path / 'home'}': {hint}"), opened(tmp_path):
        pass


def test_a_home_may_grow_and_a_node_may_not_become_another(tmp_path: Path) -> None:
    with opened(tmp_path, "gpu:1x2") as plane:
        submit(plane, job("a", 2))
        obey(plane, "gpu-0")
    with opened(tmp_path, "gpu:2x2") as plane:
        (id,) = submit(plane, job("b", 2))
        soon(lambda: plane.job(id, None).job.nodes == ["gpu-1"])
    derived, _, _ = replay_file(tmp_path / "home" / JOURNAL)
    assert derived.decisions > 0
    with refusal("node gpu-0: '4 x gpu': is 2 x gpu in this home's journal: give it another name, or begin a new home"):
        grown(parse_cluster("gpu:1x2"), parse_cluster("gpu:1x4"))


def test_a_simulations_journal_is_no_home(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    SqliteJournal.begin(home / JOURNAL, Scenario(parse_cluster("gpu:1x2"), "fifo").settings("jobs")).close()
    before = JournalFile(home / JOURNAL).path.read_bytes()
    with pytest.raises(Exception, match="the journal of a simulation"), opened(tmp_path):
        pass
    assert (home / JOURNAL).read_bytes() == before


def test_a_log_is_asked_of_the_node_that_has_it_and_cut_between_characters(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        (id,) = submit(plane, job("a", 3))
        asked = plane.read_log(id, None, incarnation=None, rank=2, offset=10, most=100)
        (read,) = sync(plane, "gpu-1", []).reads
        assert (read.id, read.incarnation, read.rank, read.offset) == (id, 1, 2, 10)
        text = "läuft …".encode()
        plane.sync(AgentReport(protocol=PROTOCOL, node="gpu-1", boot="boot", known=0, runs=[], logs=[
            LogAnswer(read.read, 50, text[:-1])
        ]))  # fmt: skip
        part = asked.result(20)
        assert (part.text, part.next, part.size, part.live) == ("läuft ", 10 + len("läuft ".encode()), 50, True)
        for fields in ({"incarnation": 4, "rank": 0}, {"incarnation": 1, "rank": 3}):
            with pytest.raises(InputError):
                plane.read_log(id, None, offset=0, most=10, **fields)


def test_the_figures_and_totals_count_jobs_gpus_nodes_and_tenants(tmp_path: Path) -> None:
    with opened(tmp_path, "v100:1x2,k80:2x2") as plane:
        ids = submit(plane, job("a", 2, kinds=["v100"]), job("b", 1, kinds=["k80"]), job("c", 4, kinds=["k80"]))
        obey(plane, "v100-0")
        soon(lambda: state(plane, ids[0]) == "running")
        plane.cancel(submit(plane, job("d"), tenant="bob")[0], None).result(20)
        soon(lambda: len(plane.jobs(None)) == 3)
        found, again = plane.figures(), plane.figures()
        assert {name: count for name, count in found.states.items() if count} == {
            "running": 1,
            "starting": 1,
            "pending": 1,
        }
        assert set(found.states) == {s.name.lower() for s in JobState if s.live}
        assert (found.gpus_up, found.gpus_used) == ({"v100": 2, "k80": 4}, {"v100": 2, "k80": 1})
        assert (found.nodes_up, found.nodes_down) == (3, 0)
        assert (found.lost_gpu_seconds, found.restarts, found.crashes, found.completed) == (0.0, 0, 0, 0)
        assert (found.submitted, found.review_in) == (4, float("inf"))
        assert [(row.tenant, row.held) for row in found.tenants] == [(r.tenant, r.held) for r in plane.share(None)]
        assert len(found.decision_seconds) > 0 < len(found.commit_seconds)
        assert (list(again.decision_seconds), list(again.commit_seconds)) == ([], [])
        row = plane.cluster()
        assert (row.protocol, row.policy, row.cluster) == (PROTOCOL, "fifo", "v100:1x2,k80:2x2")
        assert (row.up_gpus, row.used_gpus, row.running, row.waiting, row.ended) == (6, 3, 2, 1, 1)
        assert (row.decisions, row.short_of_disk) == (found.decisions, "")
        assert row.now > plane.about.epoch


def test_a_job_keeps_the_status_of_the_rank_that_failed_first(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        (id,) = submit(plane, job("a", 2, retries=0))
        obey(plane, "gpu-0", (0, 3))
        soon(lambda: state(plane, id) == "failed")
        assert plane.job(id, "ann").exit_status == 3
    with opened(tmp_path) as plane:
        assert plane.job(id, "ann").exit_status == 3, "also after a restart"


@pytest.mark.parametrize(
    ("data", "begin", "after", "text", "first", "following"),
    [
        (b"abc", None, None, "abc", 10, 13),
        (b"abc", 12, 40, "abc", 12, 40),
        ("a…".encode()[:-1], None, 40, "a", 10, 11),
        (b"", None, None, "", 10, 10),
        (b"\xff\xff\xff\xff\xffa", None, None, "\ufffd" * 5 + "a", 10, 16),
    ],
)
def test_a_part_of_a_log_says_where_it_begins_and_where_the_next_begins(
    tmp_path: Path, data: bytes, begin: int | None, after: int | None, text: str, first: int, following: int
) -> None:
    with opened(tmp_path) as plane:
        (id,) = submit(plane, job("a", 3))
        asked = plane.read_log(id, "ann", incarnation=1, rank=1, offset=10, most=100)
        (read,) = sync(plane, "gpu-0", []).reads
        assert (read.id, read.incarnation, read.rank, read.offset, read.most) == (id, 1, 1, 10, 100)
        answer = LogAnswer(read.read, -1, data, begin=begin, next=after)
        plane.sync(AgentReport(protocol=PROTOCOL, node="gpu-0", boot="boot", known=0, runs=[], logs=[answer]))
        assert asked.result(20) == LogPart(id, 1, 1, first, 0, text, True, following, ranks=3)
        assert sync(plane, "gpu-0", []).reads == []


def test_a_job_shows_its_bid_where_the_policy_has_prices(tmp_path: Path) -> None:
    with opened(tmp_path, policy="shoal") as plane:
        long, short = submit(plane, job("long", 4, work=5000.0), job("short", 4, work=50.0))
        soon(lambda: plane.job(short, None).job.bid is not None and plane.job(long, None).job.bid is not None)
        bids = {row.id: row.bid or 0.0 for row in plane.jobs(None)}
        assert bids[short] > bids[long] > 0
    with opened(tmp_path / "other") as plane:
        (one,) = submit(plane, job("one"))
        soon(lambda: state(plane, one) == "starting")
        assert plane.job(one, None).job.bid is None


def test_a_run_that_is_cancelled_by_force_is_killed_without_its_grace(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        for force, grace in ((False, 40.0), (True, 0.0)):
            (id,) = submit(plane, job(grace=40.0))
            running = obey(plane, "gpu-0")
            plane.cancel(id, None, force=force).result(20)
            reports = [RunReport(job=r.job, incarnation=r.incarnation, phase="running") for r in running]
            soon(lambda: [order.phase for order in sync(plane, "gpu-0", reports).runs] == ["stop"])  # noqa: B023
            assert [order.grace for order in sync(plane, "gpu-0", reports).runs] == [grace]
            cancel(plane, id)


def test_an_apps_own_bid_holds_in_the_next_auction_and_is_of_its_live_jobs_only(tmp_path: Path) -> None:
    with opened(tmp_path, policy="themis") as plane:
        (id,) = submit(plane, job(app="sweep", max_gpus=2, work=100.0))
        obey(plane, "gpu-0")
        with pytest.raises(InputError, match="jobs"):
            plane.bid("sweep", AppBidMessage([id, "other"], [(1, 300.0)]), "ann")
        plane.bid("sweep", AppBidMessage([id], [(1, 300.0), (2, 150.0)]), "ann").result(20)
        submit(plane, job("next"), tenant="bo")
        soon(lambda: plane.offer("sweep", "ann").said)
