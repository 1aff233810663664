"""``python -m shoal.agent``: an agent without the rest of Shoal; its token comes from a file or a file descriptor."""

import argparse
import socket
import sys
from pathlib import Path

from shoal.agent.agent_settings import AgentSettings
from shoal.agent.job_logs import DEFAULT_LOG_BYTES
from shoal.agent.run_agent import main
from shoal.core.errors import InputError
from shoal.wire.token_source import agent_token


def _settings(arguments: list[str]) -> AgentSettings:
    parser = argparse.ArgumentParser(prog="shoal agent", description="Serve one node of a Shoal cluster.")
    add = parser.add_argument
    add("--server", required=True, metavar="URL", help="the control plane")
    add("--token-file", type=Path, help="file with the agent's token")
    add("--token-fd", type=int, metavar="FD", help="open file descriptor from which the token is read")
    add("--cafile", help="certificates to trust for https")
    add("--node", default=socket.gethostname(), help="this node's name (default: the host's)")
    add("--kind", help="what its GPUs are called (default: ask the driver)")
    add("--gpus", type=int, help="how many GPUs or slots it has (default: ask the driver)")
    add("--first-device", type=int, default=0, help="the first of the machine's GPUs that is its own")
    add("--address", default="127.0.0.1", help="where ranks on other nodes reach this one")
    add("--home", type=Path, default=Path.home() / ".shoal", help="where jobs, logs and records go")
    add("--root", dest="roots", type=Path, action="append", default=[], help="a folder jobs may work in; repeatable")
    add("--log-bytes", type=int, default=DEFAULT_LOG_BYTES, help="the most bytes kept of a rank's log")
    add("--tenant-users", default="off", metavar="USERS", help="off, auto, FIRST-LAST or a file of `tenant: user`")
    add("--parent", type=int, metavar="PID", help="the process that started this one, and with which it ends")
    add("--allocation", default="", metavar="NAME", help="its allocation for one run, with which it ends")
    add("--longest-grace", type=float, metavar="SECONDS", help="what its engine leaves between SIGTERM and SIGKILL")
    given = vars(parser.parse_args(arguments))
    token = agent_token(given.pop("token_file"), given.pop("token_fd"))
    return AgentSettings(token=token, **{**given, "roots": tuple(given["roots"])})


if __name__ == "__main__":
    try:
        settings = _settings(sys.argv[1:])
    except InputError as error:
        print(f"shoal agent: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    sys.exit(main(settings))
