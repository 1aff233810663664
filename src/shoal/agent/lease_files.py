"""The lease files of a node's runs, from which a job reads the end of its lease and whether it is being stopped."""

import logging
from math import inf

from shoal.agent.node_run import Key
from shoal.agent.workspace import Workspace

_LOG = logging.getLogger("shoal.agent")

LEASE_SECONDS = 1.0
"""Seconds by which a lease must be prolonged before the file is written again."""


class LeaseFiles:
    """The end of the lease in each run's file; infinite once the file states that the job is being stopped."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._written: dict[Key, float] = {}

    def begin(self, key: Key, lease: float) -> None:
        """Note the lease that a new run's file has."""
        self._written[key] = lease

    def renew(self, key: Key, lease: float) -> None:
        """Write a longer lease, unless it is hardly longer or the job is being stopped."""
        if lease > self._written.get(key, 0.0) + LEASE_SECONDS:
            self.write(key, lease)

    def write(self, key: Key, lease: float, *, stopping: bool = False) -> None:
        """Write a run's lease file."""
        self._written[key] = inf if stopping else lease
        try:
            self._workspace.write_lease(key, lease, stopping=stopping)
        except OSError as error:
            # The keeper still warns the job, as it warns one without the trainer library.
            _LOG.warning("lease file not written", extra={"run": key, "error": str(error)})

    def forget(self, key: Key) -> None:
        """Forget a run, which has ended."""
        self._written.pop(key, None)
