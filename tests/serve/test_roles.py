"""Who may do what: every route with every kind of caller, and what one tenant can learn of another."""

import json
import re
from base64 import b64encode
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from shoal.live.log_reads import ForeignRead
from shoal.serve.routes import ROUTES
from shoal.wire.messages import AgentOrders, AgentReport

if TYPE_CHECKING:
    from tests.serve.conftest import Harness

HELLO = {"protocol": 1, "node": "n0", "boot": "b", "kind": "v100", "gpus": 4, "address": "127.0.0.1"}
REPORT = {"protocol": 1, "node": "n0", "boot": "b", "known": 0, "runs": []}
JOB = {"command": ["true"]}
ARCHIVE = b"an archive"
CODE = sha256(ARCHIVE).hexdigest()
PART = {"offset": 0, "size": len(ARCHIVE), "data": b64encode(ARCHIVE).decode()}

CALLERS = (None, "admin", "ana", "bo", "agent-n1", "agent-n0")
#                                                             none admin  ana   bo  n1's n0's
TABLE: list[tuple[str, str, Any, tuple[int, int, int, int, int, int]]] = [
    ("POST", "/v1/jobs", JOB, (401, 201, 201, 201, 403, 403)),
    ("POST", "/v1/jobs/batch", {"jobs": [JOB, JOB]}, (401, 201, 201, 201, 403, 403)),
    ("GET", "/v1/jobs", None, (401, 200, 200, 200, 403, 403)),
    ("GET", "/v1/jobs/hers-aaaa", None, (401, 200, 200, 404, 403, 403)),
    ("GET", "/v1/jobs/hers-aaaa/training", None, (401, 200, 200, 404, 403, 403)),
    ("GET", "/v1/jobs/hers-aaaa/log", None, (401, 200, 200, 404, 403, 403)),
    ("PATCH", "/v1/jobs/hers-aaaa", {"gpus": 2}, (401, 204, 204, 404, 403, 403)),
    ("DELETE", "/v1/jobs/hers-aaaa", None, (401, 204, 204, 404, 403, 403)),
    ("POST", "/v1/jobs/hers-aaaa/hold", None, (401, 204, 204, 404, 403, 403)),
    ("POST", "/v1/jobs/hers-aaaa/release", None, (401, 204, 204, 404, 403, 403)),
    ("POST", "/v1/jobs/hers-aaaa/requeue", None, (401, 204, 204, 404, 403, 403)),
    ("POST", "/v1/jobs/hers-aaaa/priority", {"priority": 3}, (401, 204, 204, 404, 403, 403)),
    ("POST", "/v1/priority", {"name": "job", "priority": -3}, (401, 200, 200, 200, 403, 403)),
    ("POST", "/v1/cancel", {"name": "job"}, (401, 200, 200, 200, 403, 403)),
    ("GET", f"/v1/code/{CODE}", None, (401, 200, 200, 200, 403, 403)),
    ("GET", f"/v1/code/{CODE}?tenant=bo", None, (401, 200, 422, 200, 403, 403)),
    ("POST", f"/v1/code/{CODE}", PART, (401, 200, 200, 200, 403, 403)),
    ("GET", f"/v1/agent/code/{CODE}?job=1", None, (401, 403, 403, 403, 404, 422)),
    ("POST", "/v1/jobs/hers-aaaa/sessions", {"command": ["true"]}, (401, 201, 201, 404, 403, 403)),
    ("POST", "/v1/sessions/s0/input", {"first": 0, "pieces": []}, (401, 200, 200, 404, 403, 403)),
    ("GET", "/v1/sessions/s0/output", None, (401, 200, 200, 404, 403, 403)),
    ("DELETE", "/v1/sessions/s0", None, (401, 204, 204, 404, 403, 403)),
    ("POST", "/v1/agent/sessions/s0/input", {"after": 0}, (401, 403, 403, 403, 404, 200)),
    ("POST", "/v1/agent/sessions/s0/output", {"first": 0}, (401, 403, 403, 403, 404, 200)),
    ("GET", "/v1/apps/sweep/offer", None, (401, 200, 200, 404, 403, 403)),
    ("POST", "/v1/apps/sweep/bid", {"jobs": ["hers-aaaa"], "rows": [[1, 60.0]]}, (401, 204, 204, 404, 403, 403)),
    ("GET", "/v1/searches", None, (401, 200, 200, 200, 403, 403)),
    ("POST", "/v1/apps/sweep/search", {"scheduler": "halving"}, (401, 204, 204, 204, 403, 403)),
    ("GET", "/v1/nodes", None, (401, 200, 200, 200, 403, 403)),
    ("POST", "/v1/nodes/n0/drain", {"reason": "a fan"}, (401, 204, 403, 403, 403, 403)),
    ("POST", "/v1/nodes/n0/resume", None, (401, 204, 403, 403, 403, 403)),
    ("POST", "/v1/nodes", {"name": "n2", "kind": "v100", "gpus": 4}, (401, 201, 403, 403, 403, 403)),
    ("DELETE", "/v1/nodes/n0", None, (401, 204, 403, 403, 403, 403)),
    ("POST", "/v1/agent/join", {"name": "n2", "kind": "v100", "gpus": 4}, (401, 403, 403, 403, 403, 403)),
    ("GET", "/v1/decisions", None, (401, 200, 200, 200, 403, 403)),
    ("GET", "/v1/decisions/3", None, (401, 200, 200, 200, 403, 403)),
    ("GET", "/v1/share", None, (401, 200, 200, 200, 403, 403)),
    ("GET", "/v1/quotas", None, (401, 200, 403, 403, 403, 403)),
    ("POST", "/v1/quotas", {"tenant": "ana", "gpus": 4}, (401, 204, 403, 403, 403, 403)),
    ("GET", "/v1/acct", None, (401, 200, 200, 200, 403, 403)),
    ("GET", "/v1/cluster", None, (401, 200, 200, 200, 403, 403)),
    ("GET", "/v1/policies", None, (401, 200, 200, 200, 403, 403)),
    ("GET", "/v1/policy", None, (401, 200, 200, 200, 403, 403)),
    ("POST", "/v1/policy", {"policy": "las"}, (401, 204, 403, 403, 403, 403)),
    ("POST", "/v1/policy/shadow", {"policy": "las"}, (401, 204, 403, 403, 403, 403)),
    ("POST", "/v1/whatif", {"policies": ["las"]}, (401, 200, 200, 200, 403, 403)),
    ("POST", "/v1/agent/hello", HELLO, (401, 403, 403, 403, 403, 200)),
    ("POST", "/v1/agent/hello", {**HELLO, "node": "n1"}, (401, 403, 403, 403, 200, 403)),
    ("POST", "/v1/agent/sync", REPORT, (401, 403, 403, 403, 403, 200)),
    ("POST", "/v1/agent/sync", {**REPORT, "node": "n1"}, (401, 403, 403, 403, 200, 403)),
    ("POST", "/v1/tokens", {"name": "new", "role": "agent", "node": "n1"}, (401, 201, 403, 403, 403, 403)),
    ("GET", "/v1/tokens", None, (401, 200, 403, 403, 403, 403)),
    ("DELETE", "/v1/tokens/bo", None, (401, 204, 403, 403, 403, 403)),
    ("GET", "/v1/metrics", None, (401, 200, 403, 403, 200, 200)),
    ("GET", "/v1/healthz", None, (200, 200, 200, 200, 200, 200)),
    ("GET", "/v1/openapi.json", None, (401, 200, 200, 200, 200, 200)),
    ("POST", "/v1/login", {"token": "nonsense"}, (401, 401, 401, 401, 401, 401)),
    ("GET", "/v1/login", None, (401, 200, 200, 200, 403, 403)),
    ("DELETE", "/v1/login", None, (401, 204, 204, 204, 403, 403)),
    ("POST", "/v1/login/code", None, (401, 201, 201, 201, 403, 403)),
]


@pytest.mark.parametrize(("method", "path", "body", "statuses"), TABLE, ids=[f"{row[0]} {row[1]}" for row in TABLE])
def test_each_route_answers_each_caller_as_the_table_says(
    harness: "Harness", method: str, path: str, body: Any, statuses: tuple[int, ...]
) -> None:
    order = [2, 3, 0, 4, 5, 1]  # the admin last: it revokes the token and makes the one that the others ask about
    for caller in order:
        response = harness.call(method, path, CALLERS[caller], **({"json": body} if body is not None else {}))
        assert response.status_code == statuses[caller], (CALLERS[caller], response.text)
        if response.status_code >= 400:
            assert response.json()["error"]


def test_the_table_leaves_no_route_out() -> None:
    def template(path: str) -> str:
        return (
            path.replace("hers-aaaa", "{job}")
            .replace("/bo", "/{token}")
            .replace("sweep", "{app}")
            .replace("n0", "{node}")
            .replace("s0", "{session}")
            .replace(CODE, "{digest}")
            .replace("decisions/3", "decisions/{decision}")
            .partition("?")[0]
        )

    tried = {(method, template(path)) for method, path, _, _ in TABLE}
    assert {(route.method, route.path) for route in ROUTES} - tried == {("GET", "/v1/events"), ("GET", "/v1/watch")}


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer ", "Bearer nonsense", "Basic YTpi", "Bearer \xff\xfe"])
def test_what_is_not_a_token_is_refused_with_a_challenge(harness: "Harness", header: str) -> None:
    headers = {"Authorization": header.encode("latin-1")}
    response = harness.call("GET", "/v1/jobs", None, headers=headers)
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("method", "suffix", "body"),
    [("GET", "", None), ("GET", "/log?rank=3", None), ("DELETE", "", None), ("PATCH", "", {"gpus": 2})],
)
def test_another_tenants_job_answers_byte_for_byte_like_none(
    harness: "Harness", method: str, suffix: str, body: Any
) -> None:
    hers = harness.call(method, f"/v1/jobs/hers-aaaa{suffix}", "bo", json=body)
    none = harness.call(method, f"/v1/jobs/none-aaaa{suffix}", "bo", json=body)
    assert hers.status_code == none.status_code == 404
    assert hers.content.replace(b"hers-aaaa", b"none-aaaa") == none.content
    assert dict(hers.headers) == dict(none.headers)
    assert hers.json()["field"] == "job"
    assert b"ana" not in hers.content


def test_a_user_is_listed_only_its_tenants_jobs(harness: "Harness") -> None:
    assert [row["id"] for row in harness.call("GET", "/v1/jobs?all=true", "bo").json()] == ["his-bbbb"]
    assert [row["id"] for row in harness.call("GET", "/v1/jobs").json()] == ["hers-aaaa", "his-bbbb"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/jobs", {**JOB, "tenant": "bo"}, "tenant"),
        ("/v1/jobs/batch", {"jobs": [JOB, {**JOB, "tenant": "bo"}]}, "jobs[1].tenant"),
        ("/v1/whatif", {"job": {**JOB, "tenant": "bo"}}, "job.tenant"),
    ],
)
def test_a_user_cannot_submit_for_another_tenant(harness: "Harness", path: str, body: Any, field: str) -> None:
    before = dict(harness.control_plane.owners)
    response = harness.call("POST", path, "ana", json=body)
    assert response.status_code == 422
    assert (response.json()["field"], response.json()["value"]) == (field, "bo")
    assert harness.control_plane.owners == before


def test_a_submission_belongs_to_the_tenant_of_its_token_or_the_one_an_admin_names(harness: "Harness") -> None:
    for who, body in [("ana", JOB), ("ana", {**JOB, "tenant": "ana"}), ("admin", {**JOB, "tenant": "bo"})]:
        harness.call("POST", "/v1/jobs", who, json=body)
    harness.call("POST", "/v1/jobs", "admin", json=JOB)
    assert list(harness.control_plane.owners.values())[2:] == ["ana", "ana", "bo", "default"]


@pytest.mark.parametrize(("address", "forwarded", "status"), [
    ("127.0.0.1", {}, 200),
    ("::1", {}, 200),
    ("192.0.2.7", {}, 401),
    ("127.0.0.1", {"X-Forwarded-For": "192.0.2.7"}, 401),
])  # fmt: skip
def test_metrics_need_no_token_on_the_same_machine_unless_a_proxy_asks(
    harness: "Harness", address: str, forwarded: dict[str, str], status: int
) -> None:
    import asyncio

    async def ask() -> int:
        async with harness.client(address) as client:
            return (await client.get("/v1/metrics", headers=forwarded)).status_code

    assert asyncio.run(ask()) == status


def test_a_revoked_token_is_refused_at_once_and_the_last_admin_cannot_be_revoked(harness: "Harness") -> None:
    assert harness.call("GET", "/v1/jobs", "bo").status_code == 200
    assert harness.call("DELETE", "/v1/tokens/bo").status_code == 204
    assert harness.call("GET", "/v1/jobs", "bo").status_code == 401
    assert harness.call("DELETE", "/v1/tokens/bo").status_code == 404
    last = harness.call("DELETE", "/v1/tokens/admin")
    assert last.status_code == 409
    assert "only admin" in last.json()["hint"]


def test_a_new_token_works_its_secret_is_shown_once_and_its_name_is_taken(harness: "Harness") -> None:
    body = {"name": "cy", "role": "user", "tenant": "cy"}
    made = harness.call("POST", "/v1/tokens", json=body).json()
    harness.secrets["cy"] = made["secret"]
    assert harness.call("GET", "/v1/jobs", "cy").json() == []
    listed = harness.call("GET", "/v1/tokens")
    assert made["secret"] not in listed.text
    assert {row["name"]: row["secret"] for row in listed.json()}["cy"] is None
    again = harness.call("POST", "/v1/tokens", json=body)
    assert (again.status_code, again.json()["field"]) == (409, "name")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "x", "role": "user"}, "tenant"),
        ({"name": "x", "role": "agent", "tenant": "ana"}, "tenant"),
        ({"name": "x", "role": "user", "tenant": "ana", "node": "n0"}, "node"),
        ({"name": "x", "role": "agent"}, "node"),
        ({"name": "up.x", "role": "admin"}, "name"),
        ({"name": "x", "role": "admin", "days": 0}, "days"),
        ({"name": "../x", "role": "admin"}, "name"),
        ({"name": "x\n", "role": "admin"}, "name"),
        ({"name": "x", "role": "root"}, "role"),
    ],
)
def test_a_token_that_fits_no_role_is_refused(harness: "Harness", body: dict[str, str], field: str) -> None:
    response = harness.call(
        "POST", "/v1/tokens", content=json.dumps(body), headers={"Content-Type": "application/json"}
    )
    assert (response.status_code, response.json()["field"]) == (422, field)


def test_an_expired_token_is_refused_with_its_day_and_the_way_out(harness: "Harness") -> None:
    body = {"name": "cy", "role": "user", "tenant": "cy", "days": 1e-9}
    harness.secrets["cy"] = harness.call("POST", "/v1/tokens", json=body).json()["secret"]
    response = harness.call("GET", "/v1/jobs", "cy")
    assert response.status_code == 401
    assert re.fullmatch(r"the token cy expired on \d{4}-\d\d-\d\d; .*`shoal token create`", response.json()["error"])
    assert harness.call("GET", "/v1/healthz", "cy").status_code == 200


def test_an_agents_token_that_names_no_node_opens_no_nodes_orders(harness: "Harness") -> None:
    secret = harness.tokens.lend("old", "agent")
    response = harness.call("POST", "/v1/agent/hello", None, json=HELLO, headers={"Authorization": f"Bearer {secret}"})
    assert (response.status_code, response.json()["field"]) == (403, "node")


def test_the_answer_to_a_log_read_of_another_node_is_refused(harness: "Harness") -> None:
    def refuse(report: AgentReport) -> AgentOrders:
        raise ForeignRead("logs", 1, f"this piece of a log was not asked of {report.node}")

    harness.control_plane.sync = refuse  # type: ignore[method-assign]
    response = harness.call("POST", "/v1/agent/sync", "agent-n0", json=REPORT)
    assert (response.status_code, response.json()["field"]) == (403, "logs")


def test_code_is_its_tenants_own_and_an_agent_gets_only_that_of_its_nodes_runs(harness: "Harness") -> None:
    path = f"/v1/code/{CODE}"
    assert harness.call("POST", path, "ana", json=PART).json() == {"have": len(ARCHIVE), "whole": True}
    assert harness.call("GET", path, "bo").json() == {"have": 0, "whole": False}, "though ana has sent it"
    assert harness.call("POST", "/v1/jobs", "ana", json={**JOB, "code": CODE}).status_code == 201
    assert harness.call("POST", "/v1/jobs", "bo", json={**JOB, "code": CODE}).json()["field"] == "code"
    assert harness.call("GET", f"/v1/agent/code/{CODE}?job=1", "agent-n0").json() == PART
    assert harness.call("GET", f"/v1/agent/code/{CODE}?job=2", "agent-n0").status_code == 404
    assert harness.call("GET", f"/v1/agent/code/{CODE}?job=1", "agent-n1").status_code == 404
