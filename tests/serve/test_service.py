"""The tokens a control plane writes for its nodes and its owner, and those that `shoal up` writes nowhere."""

import json
import sqlite3
import stat
import time
from contextlib import closing
from pathlib import Path

import pytest

from shoal.core.errors import ShoalError
from shoal.core.topology import parse_cluster
from shoal.live.home import Settings
from shoal.scenario.scenario import Scenario
from shoal.serve.service import Address, run_service
from shoal.wire.client import Client, Refused
from shoal.wire.messages import PROTOCOL, AgentOrders, ClusterRow, Hello, TokenRow


def test_each_node_has_a_token_of_its_own_which_a_later_start_keeps_and_an_embedded_one_revokes(
    tmp_path: Path,
) -> None:
    settings = Settings(tmp_path, Scenario(parse_cluster("gpu:2x1"), "fifo"))
    files = [tmp_path / "admin.token", *(tmp_path / "agents" / f"gpu-{node}.token" for node in (0, 1))]
    with run_service(settings, Address()) as made:
        first = [file.read_text() for file in files]
        assert {stat.S_IMODE(file.stat().st_mode) for file in (*files, tmp_path / "client.json")} == {0o600}
        agent = Client(made.listening.url, made.agent_token("gpu-0"))
        hellos = [Hello(PROTOCOL, f"gpu-{node}", "boot", "gpu", 1, "127.0.0.1") for node in (0, 1)]
        agent.post("/v1/agent/hello", hellos[0], AgentOrders)
        with pytest.raises(Refused, match="another node's"):
            agent.post("/v1/agent/hello", hellos[1], AgentOrders)
        agent.close()
    with run_service(settings, Address()):
        assert [file.read_text() for file in files] == first
    with closing(sqlite3.connect(tmp_path / "tokens.sqlite")) as tokens, tokens:
        tokens.execute("UPDATE token SET expires = ?", (time.time() + 39 * 86400,))
    with run_service(settings, Address()) as made:
        assert all(file.read_text() != secret for file, secret in zip(files, first, strict=True))
        old = Client(made.listening.url, first[0].strip())
        old.get("/v1/cluster", ClusterRow)  # valid until its own expiry
        old.close()
    with run_service(settings, Address(), embedded=True) as made:
        assert not any(file.exists() for file in files)
        assert json.loads((tmp_path / "client.json").read_text())["token"] is None
        made.agent_token("gpu-0")
        admin = Client(made.listening.url, made.admin_token)
        names = {row.name for row in admin.get("/v1/tokens", list[TokenRow]) if row.name.startswith("up.")}
        admin.close()
        assert names == {"up.admin", "up.gpu-0"}


def test_the_token_of_an_allocation_opens_its_orders_alone_also_after_a_restart(tmp_path: Path) -> None:
    settings = Settings(tmp_path, Scenario(parse_cluster("gpu:1x1"), "fifo"))
    with run_service(settings, Address()) as made:
        secret = made.run_token("a.1.gpu-0")
    with run_service(settings, Address()) as made:
        assert made.run_token("a.1.gpu-0") == secret

        def ask(token: str, allocation: str) -> str:
            client = Client(made.listening.url, token)
            hello = Hello(PROTOCOL, "gpu-0", "boot", "gpu", 1, "127.0.0.1", allocation=allocation)
            with closing(client), pytest.raises(ShoalError) as refused:
                client.post("/v1/agent/hello", hello, AgentOrders)
            return str(refused.value)

        assert "no run on this node any more" in ask(secret, "a.1.gpu-0")
        for token, allocation in ((secret, "b.1.gpu-0"), (secret, ""), (made.agent_token("gpu-0"), "a.1.gpu-0")):
            assert "another allocation's" in ask(token, allocation)
        forged = secret.replace("a.1.gpu-0", "b.1.gpu-0")
        with closing(Client(made.listening.url, forged)) as client, pytest.raises(Refused) as refused:
            client.post(
                "/v1/agent/hello", Hello(PROTOCOL, "gpu-0", "b", "gpu", 1, "h", allocation="b.1.gpu-0"), AgentOrders
            )
        assert refused.value.status == 401
