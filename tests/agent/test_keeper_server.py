"""Nothing of a run outlives its lease, whichever of Shoal's processes on the node are killed or stopped."""

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest
from tests.agent.conftest import Site, keeper_of, order, server_of, until

from shoal.agent.processes import find_process

ESCAPE = """
setsid env -i sh -c 'echo $$ > {pid}; exec sleep 600' &
exec sleep 600
"""


def living(pid: int) -> bool:
    found = find_process(pid)
    return found is not None and found.state != "Z"


def escaped(site: Site, tmp_path: Path) -> int:
    """Start a rank that leaves a process in a session of its own and with an empty environment; return its number."""
    path = tmp_path / "escaped"
    site.plane.want(order("go", ["sh", "-c", ESCAPE.format(pid=path)], grace=0.5))
    site.plane.until("running")
    until(lambda: path.exists() and path.read_text().strip(), "the process has left")
    return int(path.read_text())


@pytest.mark.parametrize("victims", ["keeper", "agent and keeper", "server", "server and keeper"])
def test_a_process_that_hides_from_its_run_dies_with_the_keeper(site: Site, tmp_path: Path, victims: str) -> None:
    agent = site.agent()
    pid = escaped(site, tmp_path)
    named = {"agent": agent.pid, "keeper": keeper_of(site), "server": server_of(site)}
    for name in victims.split(" and "):
        with suppress(ProcessLookupError):  # the keeper ends with its server, perhaps before it is killed itself
            os.kill(named[name], signal.SIGKILL)
    until(lambda: not living(pid), "it is gone")
    if "agent" not in victims:
        report = site.plane.until("ended")
        assert "keeper died" in report.cause
        assert report.blameless
        site.plane.want(order("go", ["true"], job=2, gpus=2))
        assert site.plane.until("ended", 2).finished


@pytest.mark.parametrize("stopped", ["agent and keeper", "keeper"])
def test_a_lease_ends_the_run_even_while_its_agent_and_keeper_are_stopped(
    site: Site, tmp_path: Path, stopped: str
) -> None:
    site.plane.lease = 2.0
    agent = site.agent()
    pid = escaped(site, tmp_path)
    keeper = keeper_of(site)
    os.kill(keeper, signal.SIGSTOP)
    if "agent" in stopped:
        os.kill(agent.pid, signal.SIGSTOP)
    else:
        site.plane.want()
    until(lambda: not living(pid) and not living(keeper), "all of it is gone")
    agent.send_signal(signal.SIGCONT)
    site.gone()


def test_a_server_that_hangs_is_killed_and_the_next_run_has_another(site: Site, tmp_path: Path) -> None:
    site.agent()
    pid = escaped(site, tmp_path)
    server = server_of(site)
    for victim in (keeper_of(site), server):
        os.kill(victim, signal.SIGSTOP)
    site.plane.want()
    until(lambda: not living(pid) and not living(server), "all of it is gone")
    site.plane.want(order("go", ["true"], job=2, gpus=2))
    assert site.plane.until("ended", 2).finished
