"""Join tokens: an agent adds its own node with one and gets a token that opens that node's orders only."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shoal.agent.joining import join
from shoal.core.errors import InputError
from shoal.serve.routes import ROUTES

if TYPE_CHECKING:
    from tests.serve.conftest import Harness, Serving

NEW = {"name": "n9", "kind": "v100", "gpus": 4}
HELLO = {"protocol": 1, "node": "n9", "boot": "b", "kind": "v100", "gpus": 4, "address": "127.0.0.1"}


def with_join_token(harness: "Harness") -> str:
    made = harness.call("POST", "/v1/tokens", json={"name": "joiner", "role": "join"})
    harness.secrets["joiner"] = str(made.json()["secret"])
    return harness.secrets["joiner"]


def test_a_join_token_opens_one_route_and_its_answer_the_orders_of_one_node(harness: "Harness") -> None:
    with_join_token(harness)
    answer = harness.call("POST", "/v1/agent/join", "joiner", json=NEW)
    assert (answer.status_code, answer.json()["name"]) == (201, "n9")
    harness.secrets["n9"] = answer.json()["secret"]
    assert harness.call("POST", "/v1/agent/hello", "n9", json=HELLO).status_code == 200
    assert harness.call("POST", "/v1/agent/hello", "n9", json={**HELLO, "node": "n0"}).status_code == 403
    assert harness.call("POST", "/v1/agent/hello", "joiner", json=HELLO).status_code == 403
    others = [route for route in ROUTES if route.roles and "join" not in route.roles and "{" not in route.path]
    refused = {harness.call(route.method, route.path, "joiner").status_code for route in others}
    assert refused == {403}


def test_joining_again_replaces_the_nodes_token(harness: "Harness") -> None:
    with_join_token(harness)
    first = harness.call("POST", "/v1/agent/join", "joiner", json=NEW).json()["secret"]
    second = harness.call("POST", "/v1/agent/join", "joiner", json=NEW).json()["secret"]
    assert (harness.tokens.holder(first), harness.tokens.holder(second).node) == (None, "n9")  # type: ignore[union-attr]


@pytest.mark.parametrize("field", ["tenant", "node"])
def test_a_join_token_is_bound_to_nothing(harness: "Harness", field: str) -> None:
    answer = harness.call("POST", "/v1/tokens", json={"name": "j", "role": "join", field: "x"})
    assert (answer.status_code, answer.json()["field"]) == (422, field)


def test_removing_a_node_revokes_its_agents_token(harness: "Harness") -> None:
    assert harness.call("DELETE", "/v1/nodes/n0").status_code == 204
    assert harness.call("POST", "/v1/agent/hello", "agent-n0", json={**HELLO, "node": "n0"}).status_code == 401


def test_an_agent_joins_once_and_keeps_its_token_in_a_private_file(
    harness: "Harness", serving: "Serving", tmp_path: Path
) -> None:
    url = serving().url
    (tmp_path / "join").write_text(with_join_token(harness))

    def joined() -> Path:
        return join(url, tmp_path / "join", tmp_path / "home", node="n9", kind="v100", gpus=4, cafile=None)

    path = joined()
    secret = path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert harness.tokens.holder(secret.strip()).node == "n9"  # type: ignore[union-attr]
    assert joined().read_text() == secret
    harness.tokens.remove("joined-n9")
    assert joined().read_text() != secret
    with pytest.raises(InputError, match="cannot be read"):
        join(url, tmp_path / "none", tmp_path / "other", node="n8", kind="v100", gpus=4, cafile=None)
