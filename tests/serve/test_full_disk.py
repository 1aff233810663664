"""What a caller hears while the control plane's disk is full."""

import sqlite3
from typing import TYPE_CHECKING

import pytest

from shoal.live.journal_disk import ShortOfDisk

if TYPE_CHECKING:
    from tests.serve.conftest import Harness


def test_a_request_that_needs_a_full_journal_is_refused_with_507_and_the_sentence(
    harness: "Harness", monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ShortOfDisk("the control plane is short of disk: …")

    for method in ("submit", "cancel", "reshape", "bid"):
        monkeypatch.setattr(harness.control_plane, method, refuse)
    bid = {"jobs": ["hers-aaaa"], "rows": [[1, 2.0]]}
    for method, path, body in (
        ("POST", "/v1/jobs", {"command": ["true"]}),
        ("POST", "/v1/jobs/batch", {"jobs": [{"command": ["true"]}]}),
        ("DELETE", "/v1/jobs/hers-aaaa", None),
        ("PATCH", "/v1/jobs/hers-aaaa", {"gpus": 1}),
        ("POST", "/v1/apps/sweep/bid", bid),
    ):
        refused = harness.call(method, path, json=body)
        assert (refused.status_code, refused.json()["error"]) == (507, "the control plane is short of disk: …"), path


def test_health_says_that_the_control_plane_is_short_of_disk_and_stays_200(harness: "Harness") -> None:
    assert harness.call("GET", "/v1/healthz", None).json() == {"version": "1.2"}
    harness.control_plane.short_of_disk = "the control plane is short of disk: …"
    answer = harness.call("GET", "/v1/healthz", None)
    assert (answer.status_code, answer.json()) == (200, {"version": "1.2", "short_of_disk": True})


def test_a_token_that_cannot_be_stored_is_refused_with_507(harness: "Harness", monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    monkeypatch.setattr(harness.tokens, "create", full)
    refused = harness.call("POST", "/v1/tokens", json={"name": "new", "role": "admin"})
    assert (refused.status_code, refused.json()["error"]) == (507, "the control plane's disk is full")
