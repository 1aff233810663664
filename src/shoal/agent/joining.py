"""How an agent adds its node to a running cluster with a join token."""

import os
from contextlib import closing
from pathlib import Path

from shoal.agent import devices
from shoal.core.errors import InputError
from shoal.wire.client import Client, Refused
from shoal.wire.files import replace_file
from shoal.wire.messages import NewNode, NodeToken
from shoal.wire.token_source import read_token_file


def join(
    server: str, join_file: Path, home: Path, *, node: str, kind: str | None, gpus: int | None, cafile: str | None
) -> Path:
    """Return the file with the token of this node's agent; if it has no valid one, the node joins the cluster first.

    ``join_file`` holds the join token. The token of the agent is kept in ``home``, so that a restarted agent is the
    same node at once.
    """
    path = home.resolve() / "agents" / f"{node}.token"
    if path.exists() and _valid(server, read_token_file(path), cafile):
        return path
    found = devices.find(kind, gpus, environ=os.environ)
    with closing(_client(server, read_token_file(join_file), cafile)) as client:
        answer = client.post("/v1/agent/join", NewNode(node, found.kind, found.count), NodeToken)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_file(path, f"{answer.secret}\n".encode(), mode=0o600)
    except OSError as error:
        raise InputError("home", str(home), f"cannot be written: {error.strerror}") from error
    return path


def _valid(server: str, token: str, cafile: str | None) -> bool:
    """Return whether the control plane accepts a token; an operator may have removed the node and its token."""
    with closing(_client(server, token, cafile)) as client:
        try:
            client.get("/v1/openapi.json", dict)
        except Refused as error:
            if error.status == 401:
                return False
            raise
    return True


def _client(server: str, token: str, cafile: str | None) -> Client:
    try:
        return Client(server, token, cafile=cafile)
    except OSError as error:
        raise InputError("cafile", cafile, f"cannot be used: {error.strerror or error}") from None
