"""What a submission waits for: which dependencies hold already, which never can, and whose jobs they may name."""

import signal
from collections.abc import Callable

import pytest
from tests.live.test_accounts import TWO_GPUS, accounts, start, submitted
from tests.refusals import refusal

from shoal.core.events import Event, JobCancelled, JobCompleted, JobCrashed, JobStarted
from shoal.core.job import Conditions, JobSpec, Launch, WarningSignal
from shoal.live.accounts import Account, Accounts
from shoal.live.conditions import Resolver, warning_signal
from shoal.wire.messages import Dependency, SignalRequest, Submission

EPOCH = 1000.0


def world(*ends: Event) -> Accounts:
    """Ann's job "a", which has begun, and hers and Bob's "b", which wait; then these events."""
    found = accounts((0.0, [submitted(id="a"), submitted(id="b"), submitted(id="c", tenant="bob")], []))
    found.apply_commands(1.0, [start(placement=TWO_GPUS)])
    found.apply_events([JobStarted(2.0, 0, 1, 1.0, 0.0), *ends])
    return found


def resolver(
    found: Accounts, tenant: str | None = "ann", ended: Callable[[str, str | None], Account | None] = lambda *_: None
) -> Resolver:
    return Resolver(found, ended, tenant, EPOCH)


def admitted(it: Resolver, name: str = "new", owner: str = "ann", **fields: object) -> Conditions | None:
    wanted = Submission(command=["t"], name=name, **fields)  # type: ignore[arg-type]
    spec = JobSpec(f"{name}-id", 0.0, 1, None, 1, 1, tenant=owner)
    job, launch = it.admitted((spec, Launch(name, ("t",))), wanted)
    assert launch == Launch(name, ("t",))
    return job.conditions


def after(*names: str, when: str = "ok") -> list[Dependency]:
    return [Dependency(name, when) for name in names]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "when", "waits"),
    [
        ("a", "ok", (("a", "ok"),)),
        ("a", "notok", (("a", "notok"),)),
        ("a", "any", (("a", "any"),)),
        ("a", "start", ()),
        ("b", "start", (("b", "start"),)),
    ],
)
def test_a_dependency_on_a_live_job_is_kept_unless_it_asks_for_a_start_that_has_been(
    name: str, when: str, waits: tuple[tuple[str, str], ...]
) -> None:
    assert admitted(resolver(world()), after=after(name, when=when)) == Conditions(waits)


FAILED = JobCrashed(9.0, 0, 1, 0.0, True, "rank 0 died", failed=True)
ENDS: dict[str, tuple[Event, dict[str, str]]] = {
    "completed": (
        JobCompleted(9.0, 0, 1, 1.0), {"notok": "has completed, and this job would start only after it failed"}
    ),
    "failed": (FAILED, {"ok": "has failed, and this job would start only after it completed"}),
    "was cancelled": (JobCancelled(9.0, 0), {"ok": "was cancelled, and this job would start only after it completed"}),
}  # fmt: skip


@pytest.mark.parametrize(("end", "refused"), ENDS.values(), ids=ENDS.keys())
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_dependency_on_a_job_that_has_ended_holds_or_never_can(
    end: Event, refused: dict[str, str], on_disk: bool
) -> None:
    for when in ("ok", "notok", "any", "start"):
        found = world(end)
        account = found.accounts[0]
        if on_disk:
            found.forget([account])
        known = {("a", "ann"): account}
        it = resolver(found, ended=lambda id, tenant, known=known: known.get((id, tenant)))  # type: ignore[misc]
        if when in refused:
            with refusal(f"after: 'a': {refused[when]}"):
                admitted(it, after=after("a", when=when))
        else:
            assert admitted(it, after=after("a", when=when)) == Conditions()


def test_only_an_admin_may_name_another_tenants_job() -> None:
    sentence = "after: 'c': there is no such job; name the id of a job submitted before"
    with refusal(sentence):
        admitted(resolver(world()), after=after("c"))
    assert admitted(resolver(world(), None), after=after("c")) == Conditions((("c", "ok"),))
    with refusal(sentence.replace("'c'", "'z'")):
        admitted(resolver(world(), None), after=after("z"))


def test_a_name_of_the_request_is_a_job_of_it_if_it_is_of_the_same_tenant() -> None:
    it = resolver(world(), None)
    assert admitted(it, "first") is None
    assert admitted(it, "second", after=after("first", when="any")) == Conditions((("first-id", "any"),))
    with refusal("after: 'first': there is no such job; name the id of a job submitted before"):
        admitted(it, "his", owner="bob", after=after("first"))
    admitted(it, "first")
    with refusal("after: 'first': names 2 jobs of this request; give each its own name"):
        admitted(it, "third", after=after("first"))


def test_a_singleton_waits_for_the_live_jobs_of_its_name_and_tenant_but_at_most_a_thousand() -> None:
    it = resolver(world())
    assert admitted(it, "job", singleton=True) == Conditions((("a", "any"), ("b", "any")))
    assert admitted(it, "job", singleton=True) == Conditions((("a", "any"), ("b", "any"), ("job-id", "any")))
    it.batch["ann", "many"] = [f"m{n}" for n in range(1000)]
    assert len((admitted(it, "many", singleton=True) or Conditions()).after) == 1000
    with refusal("singleton: 'many': 1,001 live jobs have this name; at most 1,000 can be waited for"):
        admitted(it, "many", singleton=True)


def test_times_holds_and_arrays_are_kept_in_the_journals_time() -> None:
    it = resolver(world())
    assert admitted(it, begin=1060.0) == Conditions(begin=60.0)
    assert admitted(it, hold=True) == Conditions(hold=True)
    assert admitted(it, array="sweep", most_at_once=2) == Conditions(array="sweep", most_at_once=2)
    assert admitted(it, array="sweep") == Conditions(array="sweep")
    with refusal("most_at_once: 2: needs array, the name that the jobs share"):
        admitted(it, most_at_once=2)


@pytest.mark.parametrize(
    ("given", "number"),
    [("USR1", signal.SIGUSR1), ("sigterm", signal.SIGTERM), (" 10".strip(), 10), ("1", 1), ("64", 64)],
)
def test_a_warning_signal_is_a_name_or_a_number_of_this_system(given: str, number: int) -> None:
    wanted = Submission(command=["t"], time=60.0, signal=SignalRequest(given, 5.0, True))
    assert warning_signal(wanted) == WarningSignal(number, 5.0, True)
    assert warning_signal(Submission(command=["t"], time=60.0)) is None


@pytest.mark.parametrize("given", ["0", "65", "NOSUCH", "SIG"])
def test_a_signal_that_this_system_does_not_have_is_refused(given: str) -> None:
    wanted = Submission(command=["t"], time=60.0, signal=SignalRequest(given))
    with pytest.raises(Exception, match=rf"^signal: '{given}': unknown"):
        warning_signal(wanted)
