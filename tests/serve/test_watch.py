"""Pages get the rows that changed since their last event, of what they may see, and no more."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from shoal.serve import watch as watching
from shoal.serve import watches
from shoal.serve.errors import RequestError
from shoal.serve.limits import ServerLimits
from shoal.serve.notifier import Notifier
from shoal.serve.page_views import OF_ONE_JOB, VIEWS, queue_row, rows_of_view
from shoal.serve.usage_sampler import UsageSampler
from shoal.serve.watch import WatchQuery, watch
from shoal.serve.watches import WatchedView, Watches
from shoal.wire.messages import JobRow, StartForecast
from shoal.wire.watch_events import ChangedViews, ViewsEvent

if TYPE_CHECKING:
    from tests.serve.conftest import FakeControlPlane, Harness


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "GAP_SECONDS", 0.01)
    monkeypatch.setattr(watching, "GAP_SECONDS", 0.01)
    monkeypatch.setattr(watching, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(watches, "IDLE_SECONDS", 0.05)


class Listener:
    """Reads the events of one stream of the harness's application, in its own event loop."""

    def __init__(self, harness: "Harness", who: str, **query: str) -> None:
        self.harness, self.who, self.query = harness, who, query
        self.id = ""

    async def read(self, count: int, between: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
        """Return the views of the next events; ``between`` is called after each."""
        control_plane, tokens = self.harness.control_plane, self.harness.tokens
        notifier = Notifier()
        control_plane.listen(notifier.notify)
        holder = tokens.holder(self.harness.secrets[self.who])
        context: Any = SimpleNamespace(
            control_plane=control_plane,
            tokens=tokens,
            notifier=notifier,
            listeners=SimpleNamespace(begin=lambda _: lambda: None),
            watches=self._watches(control_plane, notifier),
        )
        query = WatchQuery(**self.query, since=self.id)
        call: Any = SimpleNamespace(holder=holder, query=query, caller="x")
        stream = await watch(context, call)
        found: list[dict[str, Any]] = []
        async for event in _events(stream._events()):
            self.id = event["id"]
            found.append(json.loads(event["data"])["views"])
            if len(found) == count:
                break
            between()
        return found

    def _watches(self, control_plane: "FakeControlPlane", notifier: Notifier) -> Watches:
        kept = getattr(self.harness, "watches", None)
        made = Watches(control_plane, UsageSampler(control_plane), notifier)
        if kept is not None:
            made._views, made.number, made.start = kept._views, kept.number, kept.start
            for view in made._views.values():
                view.lock = asyncio.Lock()
        self.harness.watches = made  # type: ignore[attr-defined]
        return made


async def _events(chunks: AsyncIterator[bytes]) -> AsyncIterator[dict[str, str]]:
    async for chunk in chunks:
        lines = [line.partition(": ") for line in chunk.decode().strip().split("\n")]
        event = {name: value for name, _, value in lines}
        if "data" in event:
            yield event


def listen(listener: Listener, count: int, between: Callable[[], None] = lambda: None) -> list[dict[str, Any]]:
    return asyncio.run(asyncio.wait_for(listener.read(count, between), 20))


def test_the_first_event_has_all_rows_and_the_next_only_those_that_changed(harness: "Harness") -> None:
    def submit() -> None:
        harness.control_plane.owners["new-cccc"] = "ana"
        harness.control_plane.change()

    first, second = listen(Listener(harness, "admin", views="jobs"), 2, submit)
    assert first["jobs"]["reset"]
    assert set(first["jobs"]["rows"]) == {"hers-aaaa", "his-bbbb"}
    assert second["jobs"] == {"reset": False, "gone": [], "rows": {"new-cccc": second["jobs"]["rows"]["new-cccc"]}}


def test_a_row_that_is_gone_is_named(harness: "Harness") -> None:
    def end() -> None:
        harness.control_plane.owners.pop("his-bbbb", None)
        harness.control_plane.change()

    _, second = listen(Listener(harness, "admin", views="jobs"), 2, end)
    assert second["jobs"] == {"reset": False, "gone": ["his-bbbb"], "rows": {}}


def test_a_listener_that_comes_back_gets_what_changed_meanwhile(harness: "Harness") -> None:
    listener = Listener(harness, "admin", views="jobs")
    listen(listener, 1)
    harness.control_plane.owners["new-cccc"] = "bo"
    del harness.control_plane.owners["his-bbbb"]
    for view in harness.watches._views.values():  # type: ignore[attr-defined]
        view.due = 0.0
    (missed,) = listen(listener, 1)
    assert missed["jobs"]["gone"] == ["his-bbbb"]
    assert list(missed["jobs"]["rows"]) == ["new-cccc"]


def test_a_listener_of_another_start_of_the_server_gets_all_rows(harness: "Harness") -> None:
    listener = Listener(harness, "admin", views="jobs")
    listener.id = "0badc0de.7"
    assert listen(listener, 1)[0]["jobs"]["reset"]


def test_a_tenant_gets_its_own_rows(harness: "Harness") -> None:
    views = ",".join(view for view in VIEWS if view not in OF_ONE_JOB)
    (found,) = listen(Listener(harness, "ana", views=views), 1)
    assert list(found["jobs"]["rows"]) == ["hers-aaaa"]
    assert list(found["tenants"]["rows"]) == ["ana"]
    assert "bo" not in json.dumps(found)
    assert set(found) == set(views.split(","))


def test_the_rows_of_every_view_are_as_the_api_describes_them(harness: "Harness") -> None:
    (found,) = listen(Listener(harness, "admin", views=",".join(VIEWS), job="hers-aaaa"), 1)
    event = msgspec.convert({"now": 1.0, "views": found}, ViewsEvent)
    assert {*ChangedViews.__struct_fields__} == {*VIEWS} == {*found}
    for view, changed in found.items():
        assert msgspec.to_builtins(getattr(event.views, view)) == changed, view
    document = harness.call("GET", "/v1/openapi.json", "ana").json()
    stream = document["paths"]["/v1/watch"]["get"]["responses"]["200"]["content"]["text/event-stream"]
    name = stream["x-event-data"]["changed"]["$ref"].rpartition("/")[2]
    assert {*document["components"]["schemas"][name]["properties"]} == {"now", "views"}


def test_an_empty_view_is_sent_once(harness: "Harness") -> None:
    harness.control_plane.owners.clear()

    def submit() -> None:
        harness.control_plane.owners["new-cccc"] = "ana"
        harness.control_plane.change()

    first, second = listen(Listener(harness, "admin", views="jobs"), 2, submit)
    assert first["jobs"] == {"reset": True, "gone": [], "rows": {}}
    assert not second["jobs"]["reset"]


def test_the_story_of_a_job_is_sent_row_by_row(harness: "Harness") -> None:
    (found,) = listen(Listener(harness, "ana", views="job", job="hers-aaaa"), 1)
    assert found["job"]["rows"]["000000"] == {"at": 1.0, "what": "submitted"}
    assert "story" not in found["job"]["rows"]["detail"]


def test_the_figures_of_a_jobs_training_are_sent_point_by_point(harness: "Harness") -> None:
    (found,) = listen(Listener(harness, "ana", views="training", job="hers-aaaa"), 1)
    assert found["training"]["rows"] == {"1.0": {"at": 1.0, "loss": 0.5}, "3.0": {"at": 3.0, "loss": 0.25}}
    with pytest.raises(RequestError):
        listen(Listener(harness, "bo", views="training", job="hers-aaaa"), 1)


@pytest.mark.parametrize(
    ("who", "query", "status"),
    [
        ("bo", "views=job&job=hers-aaaa", 404),
        ("ana", "views=job", 422),
        ("ana", "views=secrets", 422),
        ("agent", "views=jobs", 403),
        (None, "views=jobs", 401),
    ],
)
def test_what_may_not_be_watched_is_refused(harness: "Harness", who: str | None, query: str, status: int) -> None:
    assert harness.call("GET", f"/v1/watch?{query}", who).status_code == status


def test_streams_of_one_tenant_are_bounded(new_harness: Any) -> None:
    harness = new_harness(ServerLimits(listeners_each=0))
    assert harness.call("GET", "/v1/watch?views=jobs", "ana").status_code == 429


def test_a_stream_ends_when_its_token_is_revoked(harness: "Harness") -> None:
    listener = Listener(harness, "bo", views="jobs")

    def revoke() -> None:
        harness.tokens.revoke("bo")
        harness.control_plane.owners["new-cccc"] = "bo"
        harness.control_plane.change()

    assert len(listen(listener, 5, revoke)) == 1


def test_a_view_forgets_rows_gone_long_ago_and_then_sends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watches, "_MOST_GONE", 2)
    view = WatchedView(dict, 1)
    view.take({str(key): b"0" for key in range(5)}, 2)
    for number in range(3, 7):
        view.take({str(key): b"0" for key in range(number - 2, 5)}, number)
    assert view.since(3) is not None
    assert json.loads(view.since(3) or b"")["reset"]
    assert json.loads(view.since(5) or b"") == {"reset": False, "gone": ["3"], "rows": {}}


def test_a_row_does_not_change_because_time_passes() -> None:
    def row_at(now: float) -> bytes:
        left = 1_000_600.0 - now
        row = JobRow(
            id="j", name="j", tenant="t", state="running", gpus_held=1, gpus_wanted=1, submitted=1.0, started=2.0,
            ended=None, done=500.0 + 0.01 * (now - 1_000_000), work=1000.0, kind="v100", nodes=["n"], reason="runs",
            end=StartForecast(left, 0.5 * left, 2 * left),
        )  # fmt: skip
        return msgspec.json.encode(queue_row(row, now))

    assert len({row_at(1_000_000.0 + 0.1 * tick) for tick in range(100)}) <= 5


def test_usage_of_other_tenants_is_one_sum(harness: "Harness") -> None:
    sampler = UsageSampler(harness.control_plane)
    sampler.samples.add(sampler.sample())
    assert sampler.rows(None)[0].held == {"ana": 3, "bo": 1}
    assert {row.held["others"] for row in sampler.rows("ana")} == {1}
    assert "bo" not in sampler.rows("ana")[0].held


def test_rows_of_jobs_are_made_again_when_they_changed_and_in_turn(
    harness: "Harness", monkeypatch: pytest.MonkeyPatch
) -> None:
    control_plane = harness.control_plane
    control_plane.owners |= {f"j{number}": "ana" for number in range(6)}
    monkeypatch.setattr("shoal.serve.page_views._SLICE", 3)
    answers: list[tuple[int, list[JobRow] | None, list[str]]] = [(1, None, [])]
    monkeypatch.setattr(type(control_plane), "changed_jobs", lambda *_: answers[0])
    find = rows_of_view(control_plane, UsageSampler(control_plane), "jobs", None, None)
    assert len(find()) == 8
    del control_plane.owners["j5"]
    answers[0] = (2, [], ["j5"])
    assert "j5" not in find()
    made: list[str] = []
    monkeypatch.setattr("shoal.serve.page_views.queue_row", lambda row, _: made.append(row.id))
    answers[0] = (3, [control_plane._row("j1")], [])
    for _ in range(3):
        find()
    assert made.count("j1") >= 3
    assert {*made} == {*control_plane.owners}, "each in its turn"


def test_listeners_informed_to_different_changes_get_the_same_as_if_each_were_alone() -> None:
    view = WatchedView(dict, 1)
    for number in range(2, 12):
        view.take({"a": b"0", "b": b"%d" % (number // 3), str(number): b"1"}, number)
    for informed in range(13):
        assert view.since(informed) == view._since(informed), informed
        assert view.since(informed) == view.since(informed)


def test_fairness_is_sampled_once_a_minute_and_a_tenant_sees_its_own_part_and_cost(harness: "Harness") -> None:
    usage = UsageSampler(harness.control_plane)
    for _ in range(6 * 12 + 1):
        usage.take()
    assert len(usage.fairness.rows()) == 7
    whole, own = usage.fairness_rows(None)[-1], usage.fairness_rows("ana")[-1]
    assert ([row.tenant for row in whole.rows], [row.tenant for row in own.rows]) == (["ana", "bo"], ["ana"])
    assert own.spent == {"ana": 7.0}, "60 dollars per hour, for 7 minutes"
    assert set(whole.spent) == {"ana", "bo"}


def test_use_is_sampled_every_5_seconds_and_older_samples_are_fewer(
    harness: "Harness", monkeypatch: pytest.MonkeyPatch
) -> None:
    usage, row = UsageSampler(harness.control_plane), harness.control_plane.cluster()
    now = [1_000_000.0]
    monkeypatch.setattr(
        type(harness.control_plane), "cluster", lambda _: msgspec.structs.replace(row, now=now[0], used_gpus=1)
    )
    for _ in range(26 * 720):
        usage.take()
        now[0] += 5.0
    ages = [now[0] - sample.at for sample in usage.rows(None)]
    gaps = [before - after for before, after in pairwise(ages)]
    assert ages[0] == pytest.approx(24 * 3600, abs=600)
    assert len(ages) < 550
    assert {gap for gap, age in zip(gaps, ages, strict=False) if age <= 600} == {5.0}
    assert max(gap for gap, age in zip(gaps, ages, strict=False) if age <= 6900) <= 60.0
    assert max(gaps) <= 300.0


def test_small_times_on_gpus_can_be_told_apart(harness: "Harness", monkeypatch: pytest.MonkeyPatch) -> None:
    control_plane, rows = harness.control_plane, harness.control_plane.share(None)
    used = (3.0, 29.0, 170.0, 190.0, 1e6)
    made = [msgspec.structs.replace(rows[0], tenant=f"t{i}", gpu_seconds=each) for i, each in enumerate(used)]
    monkeypatch.setattr(type(control_plane), "share", lambda *_: made)
    found = rows_of_view(control_plane, UsageSampler(control_plane), "tenants", None, None)()
    assert [row.gpu_seconds for row in found.values()] == pytest.approx(used, rel=0.01)
