"""Browsers log in with a token or a code and then act with a cookie: as its holder, and only from the page itself."""

import re
from typing import TYPE_CHECKING, Any

import pytest

from shoal.serve.logins import LOGIN_SECONDS, Logins
from shoal.wire.messages import NewToken

if TYPE_CHECKING:
    import httpx
    from tests.serve.conftest import Harness

HOST = "shoal"


def log_in(harness: "Harness", who: str = "ana") -> "httpx.Response":
    return harness.call("POST", "/v1/login", None, json={"token": harness.secrets[who]})


def cookie_of(answer: "httpx.Response") -> str:
    return answer.headers["Set-Cookie"].partition(";")[0]


def with_cookie(harness: "Harness", cookie: str, method: str, path: str, **headers: str) -> "httpx.Response":
    return harness.call(method, path, None, headers={"Cookie": cookie, **headers})


def test_a_login_sets_a_cookie_that_scripts_and_other_sites_cannot_use(harness: "Harness") -> None:
    answer = log_in(harness)
    attributes = answer.headers["Set-Cookie"].split("; ")
    assert re.fullmatch(r"shoal=[\w-]{43}", attributes[0])
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= set(attributes)
    assert attributes[-1] == f"Max-Age={LOGIN_SECONDS:.0f}"
    assert answer.json()["tenant"] == "ana"
    assert harness.secrets["ana"] not in answer.text + answer.headers["Set-Cookie"]


def test_the_cookie_is_for_tls_alone_where_the_server_has_it_and_its_name_holds_the_port(harness: "Harness") -> None:
    answer = harness.call("POST", "https://shoal:7433/v1/login", None, json={"token": harness.secrets["ana"]})
    assert answer.headers["Set-Cookie"].startswith("shoal-7433=")
    assert answer.headers["Set-Cookie"].endswith("; Secure")


def test_a_cookie_acts_with_the_role_and_the_tenant_of_its_token(harness: "Harness") -> None:
    cookie = cookie_of(log_in(harness))
    assert [row["tenant"] for row in with_cookie(harness, cookie, "GET", "/v1/jobs").json()] == ["ana"]
    assert with_cookie(harness, cookie, "GET", "/v1/jobs/his-bbbb").status_code == 404
    assert with_cookie(harness, cookie, "GET", "/v1/tokens").status_code == 403
    assert with_cookie(harness, "shoal=nonsense", "GET", "/v1/jobs").status_code == 401


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("DELETE", {"Origin": f"http://{HOST}"}, 204),
        ("DELETE", {"Origin": f"http://{HOST}", "Sec-Fetch-Site": "same-origin"}, 204),
        ("DELETE", {}, 403),
        ("DELETE", {"Origin": "http://evil.example"}, 403),
        ("DELETE", {"Origin": f"http://{HOST}:8888"}, 403),
        ("DELETE", {"Origin": "null"}, 403),
        ("GET", {}, 200),
        ("GET", {"Sec-Fetch-Site": "same-site"}, 403),
        ("GET", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("GET", {"Sec-Fetch-Site": "none"}, 200),
    ],
)
def test_a_cookie_is_refused_to_pages_of_other_origins(
    harness: "Harness", method: str, headers: dict[str, str], status: int
) -> None:
    cookie = cookie_of(log_in(harness))
    assert with_cookie(harness, cookie, method, "/v1/jobs/hers-aaaa", **headers).status_code == status


def test_a_bearer_token_needs_no_origin(harness: "Harness") -> None:
    assert harness.call("DELETE", "/v1/jobs/hers-aaaa", "ana", headers={"Origin": "http://x"}).status_code == 204


def test_logging_out_ends_the_cookie(harness: "Harness") -> None:
    cookie = cookie_of(log_in(harness))
    answer = with_cookie(harness, cookie, "DELETE", "/v1/login", Origin=f"http://{HOST}")
    assert answer.status_code == 204
    assert "Max-Age=0" in answer.headers["Set-Cookie"]
    assert with_cookie(harness, cookie, "GET", "/v1/login").status_code == 401


def test_revoking_a_token_ends_its_logins_even_if_another_takes_its_name(harness: "Harness") -> None:
    cookie = cookie_of(log_in(harness))
    harness.tokens.revoke("ana")
    harness.tokens.create(NewToken("ana", "admin"))
    assert with_cookie(harness, cookie, "GET", "/v1/login").status_code == 401


def test_a_login_outlives_a_restart_but_not_its_time_or_its_token(
    harness: "Harness", monkeypatch: pytest.MonkeyPatch
) -> None:
    ana = harness.tokens.holder(harness.secrets["ana"])
    assert ana is not None
    secret, expires = Logins(harness.tokens).begin(ana)
    found = Logins(harness.tokens).holder(secret)
    assert found == (ana, expires)
    assert expires - harness.tokens.now() == pytest.approx(LOGIN_SECONDS, abs=60)
    now = harness.tokens.now()
    monkeypatch.setattr(type(harness.tokens), "now", lambda _: now + LOGIN_SECONDS + 1)
    assert Logins(harness.tokens).holder(secret) is None


def test_a_code_logs_one_browser_in_once(harness: "Harness") -> None:
    code = harness.call("POST", "/v1/login/code", "bo").json()["code"]
    first = harness.call("POST", "/v1/login", None, json={"code": code})
    assert first.json()["tenant"] == "bo"
    assert harness.call("POST", "/v1/login", None, json={"code": code}).status_code == 401


def test_a_code_expires(harness: "Harness", monkeypatch: pytest.MonkeyPatch) -> None:
    code = harness.call("POST", "/v1/login/code", "bo").json()["code"]
    now = harness.tokens.now()
    monkeypatch.setattr(type(harness.tokens), "now", lambda _: now + 301)
    assert harness.call("POST", "/v1/login", None, json={"code": code}).status_code == 401


@pytest.mark.parametrize(
    ("body", "status"),
    [({"token": "nonsense"}, 401), ({"code": "nonsense"}, 401), ({}, 422), ({"token": "a", "code": "b"}, 422)],
)
def test_what_is_no_token_and_no_code_begins_no_login(harness: "Harness", body: dict[str, Any], status: int) -> None:
    answer = harness.call("POST", "/v1/login", None, json=body)
    assert answer.status_code == status
    assert "Set-Cookie" not in answer.headers


def test_only_people_can_log_in(harness: "Harness") -> None:
    assert log_in(harness, "agent").status_code == 403
    harness.secrets["joining"] = harness.tokens.create(NewToken("joining", "join")).secret or ""
    assert log_in(harness, "joining").status_code == 403


def test_logging_in_takes_json_and_a_name_of_the_server(new_harness: Any) -> None:
    harness = new_harness(hosts=frozenset({"shoal"}))
    form = harness.call("POST", "/v1/login", None, content=b'{"token": "x"}', headers={"Content-Type": "text/plain"})
    assert form.status_code == 415
    foreign = harness.call("POST", "http://evil.example/v1/login", None, json={"token": harness.secrets["ana"]})
    assert foreign.status_code == 421
