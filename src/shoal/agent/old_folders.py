"""Folders of jobs that ended long ago: the agent lists old ones and removes those the control plane has dropped."""

import os
import shutil
import time
from bisect import bisect_right
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass, field

from shoal.agent.workspace import Workspace
from shoal.wire.messages import MOST_OLD, AgentOrders

_SCAN_SECONDS = 3600.0
"""Seconds between two readings of the folders, unless the last one found more than a report can name."""

_REPORTS = 3
"""Times that the same names are reported: one report may be lost, another answered late."""


@dataclass(slots=True)
class OldFolders:
    """Finds folders of logs and jobs on a node that have not changed for as long as ended jobs are kept.

    A job that waits or runs elsewhere may have one too: only folders that the orders name are removed.
    """

    workspace: Workspace
    names: list[str] = field(default_factory=list)
    """Jobs with old folders, for the next report."""
    _last: str = ""
    _exchanges: int = 0
    _scan_at: float = 0.0

    def follow(self, orders: AgentOrders, running: Container[str]) -> None:
        """Remove the folders that the orders say to forget, and read the folders again if that is due."""
        forgotten = {job for job in orders.forget if job in self.names and job not in running}
        for job in forgotten:
            for folder in self.workspace.folders_of(job):
                shutil.rmtree(folder, ignore_errors=True)
        if forgotten and len(self.names) == MOST_OLD:
            self._scan_at = 0.0
        self._exchanges += 1
        self.names = [name for name in self.names if name not in forgotten] if self._exchanges < _REPORTS else []
        if orders.keep is not None and not self.names and time.monotonic() >= self._scan_at:
            self._scan(orders.keep)

    def _scan(self, keep: float) -> None:
        """List the next jobs in the order of their names, from where the last reading ended."""
        limit, found = time.time() - keep, set[str]()
        for parent in self.workspace.parents_of_job_folders:
            # A folder may be missing, or be removed while it is read: the next reading names the rest.
            with suppress(OSError), os.scandir(parent) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False) and entry.stat().st_mtime <= limit:
                        found.add(entry.name)
        found = {name for name in found if self.workspace.is_job_name(name)}
        every = sorted(found)
        start = bisect_right(every, self._last)
        self.names = [*every[start:], *every[:start]][:MOST_OLD]
        self._last = self.names[-1] if self.names else ""
        self._exchanges, self._scan_at = 0, time.monotonic() + _SCAN_SECONDS
