"""What is left of an earlier boot is found by what cannot be mistaken, and nothing else is touched."""

import os
import subprocess
from collections.abc import Iterator
from uuid import uuid4

import pytest
from tests.agent.conftest import until

from shoal.agent.orphans import machine_boot, remains
from shoal.agent.processes import find_process
from shoal.agent.workspace import KeeperRecord


@pytest.fixture
def bystander() -> Iterator[tuple[int, str]]:
    """A process that carries a boot in its environment."""
    boot = uuid4().hex
    process = subprocess.Popen(["sleep", "600"], env={**os.environ, "SHOAL_BOOT": boot})
    until(lambda: remains([KeeperRecord(0, 0, boot, machine_boot())], machine_boot()), "it has become what it is")
    yield process.pid, boot
    process.kill()
    process.wait()


def test_a_process_is_found_by_number_and_start_or_by_boot_and_by_nothing_less(bystander: tuple[int, str]) -> None:
    pid, boot = bystander
    process = find_process(pid)
    assert process is not None
    here = machine_boot()
    cases = {
        "the keeper itself": (KeeperRecord(pid, process.start, "other", here), [pid]),
        "a number that was taken since": (KeeperRecord(pid, process.start - 1, "other", here), []),
        "by its boot": (KeeperRecord(0, 0, boot, here), [pid]),
        "before the machine was restarted": (KeeperRecord(pid, process.start, boot, "earlier"), []),
    }
    for name, (record, found) in cases.items():
        assert [left.pid for left in remains([record], here)] == found, name
