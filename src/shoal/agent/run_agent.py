"""Run the agent of a node until SIGTERM or SIGINT."""

import logging
import sys

from shoal.agent.agent_settings import AgentSettings
from shoal.agent.confinement import hide_memory, unconfined
from shoal.agent.node_agent import NodeAgent
from shoal.core.errors import ShoalError
from shoal.wire.logs import log_json

_LOG = logging.getLogger("shoal.agent")


def main(settings: AgentSettings) -> int:
    """Serve until SIGTERM or SIGINT; return 0, or 2 with one line on stderr if something is wrong."""
    hide_memory()
    log_json()
    if why := unconfined():
        _LOG.warning("jobs can signal and trace other processes of their user", extra={"why": why})
    try:
        NodeAgent(settings).serve()
    except ShoalError as error:
        print(f"shoal agent: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return 0
