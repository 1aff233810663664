"""``python -m shoal.agent``: an agent without the rest of Shoal; its token is in SHOAL_TOKEN, never an argument."""

import argparse
import os
import socket
import sys
from pathlib import Path

from shoal.agent.node_agent import AgentSettings, main


def _settings(arguments: list[str]) -> AgentSettings:
    parser = argparse.ArgumentParser(prog="shoal agent", description="Serve one node of a Shoal cluster.")
    parser.add_argument("--server", required=True, metavar="URL", help="the control plane")
    parser.add_argument("--cafile", help="certificates to trust for https")
    parser.add_argument("--node", default=socket.gethostname(), help="this node's name (default: the host's)")
    parser.add_argument("--kind", help="what its GPUs are called (default: ask the driver)")
    parser.add_argument("--gpus", type=int, help="how many GPUs or slots it has (default: ask the driver)")
    parser.add_argument("--first-device", type=int, default=0, help="the first of the machine's GPUs that is its own")
    parser.add_argument("--address", default="127.0.0.1", help="where ranks on other nodes reach this one")
    parser.add_argument("--home", type=Path, default=Path.home() / ".shoal", help="where jobs, logs and records go")
    parser.add_argument("--root", type=Path, action="append", default=[], help="a folder jobs may work in; repeatable")
    parser.add_argument(
        "--parent", type=int, metavar="PID", help="the process that started this one, and with which it ends"
    )
    given = parser.parse_args(arguments)
    token = os.environ.pop("SHOAL_TOKEN", "")
    if not token:
        parser.error("the environment variable SHOAL_TOKEN must hold the agent's token")
    return AgentSettings(
        server=given.server,
        token=token,
        cafile=given.cafile,
        node=given.node,
        kind=given.kind,
        gpus=given.gpus,
        address=given.address,
        home=given.home,
        roots=tuple(given.root),
        parent=given.parent,
        first_device=given.first_device,
    )


if __name__ == "__main__":
    sys.exit(main(_settings(sys.argv[1:])))
