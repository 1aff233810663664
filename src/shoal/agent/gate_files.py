"""Files of the gate: a run is held while the agent's file exists, and writes a file of its own when it arrives.

Removing a file works on a full disk too, so no run is held there for ever.
"""

import logging
import time
from collections.abc import Callable
from math import inf

from shoal.agent.gates import GATE_SECONDS
from shoal.agent.node_run import Key
from shoal.agent.suspension import part_available
from shoal.agent.workspace import Workspace

_LOG = logging.getLogger("shoal.agent")

LOOK_SECONDS = 0.02
"""Seconds between two checks whether a run has arrived."""

_LEAST_FREE = 0.1
"""Fraction of the host memory that must be available for a run to be started beside the one whose devices it gets."""


class GateFiles:
    """The runs that are awaited at the gate, each until its time is over."""

    def __init__(self, workspace: Workspace, clock: Callable[[], float] = time.monotonic) -> None:
        self._workspace, self._clock = workspace, clock
        self._until: dict[Key, float] = {}

    def expect(self, key: Key) -> None:
        """Close the gate for a run, and begin to wait for it there; ``OSError`` if that is not possible."""
        self._workspace.gate(key).touch(mode=0o644)
        self._until[key] = self._clock() + GATE_SECONDS

    def forget(self, key: Key) -> None:
        """Wait no longer for a run."""
        self._until.pop(key, None)

    def due(self) -> list[Key]:
        """Return the runs that have arrived or are late, each once."""
        found = [
            key for key, until in self._until.items() if self._clock() >= until or self._workspace.arrival(key).exists()
        ]
        for key in found:
            del self._until[key]
        return found

    def next_look(self) -> float:
        """Return the monotonic time, in seconds, of the next check of these files; infinite if no run is awaited."""
        return self._clock() + LOOK_SECONDS if self._until else inf

    def open(self, key: Key) -> None:
        """Let a run through."""
        self.forget(key)
        _LOG.info("gate opened", extra={"run": key})
        self._workspace.gate(key).unlink(missing_ok=True)


class MemoryWatch:
    """Whether host memory suffices to start runs beside those that are to leave; read at most once a second."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._look_at, self._enough = clock, -inf, True

    def enough(self) -> bool:
        """Return whether enough memory was available at the last reading."""
        now = self._clock()
        if now >= self._look_at:
            self._look_at, self._enough = now + 1.0, part_available() >= _LEAST_FREE
        return self._enough
