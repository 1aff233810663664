"""When the code of a simulated process runs: soon after it is woken, and when a call that blocked has timed out."""

import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.dst.world import Blocked


@dataclass(eq=False)
class Turns:
    """The turns of a process with ``world``, ``status``, ``paused``, ``timed_out`` and ``end``.

    ``run`` runs its code up to the next call that would block, which raises ``Blocked``. Before ``up_at`` the
    interpreter starts.
    """

    process: Any
    name: str
    run: Callable[[], None]
    up_at: float
    _wakes: int = 0
    _due: bool = False

    def wake(self) -> None:
        """Run soon: input, a child's end or a signal."""
        if not self._due:
            self._due = True
            world = self.process.world
            world.after(max(0.001, self.up_at - world.now), self._enter, -1)

    def signal(self, number: int) -> None:
        """Receive a signal from outside."""
        process = self.process
        if process.status is not None:
            return
        if number == signal.SIGKILL:
            process.end(-9)
        elif number == signal.SIGSTOP:
            process.paused = True
        elif number == signal.SIGCONT:
            process.paused = False
            self.wake()

    def _enter(self, wakes: int) -> None:
        process, world = self.process, self.process.world
        if wakes < 0:
            self._due = False
        elif wakes != self._wakes:
            return
        if process.status is not None or process.paused:
            return
        self._wakes += 1
        process.timed_out = wakes >= 0
        try:
            with world.acting(process):
                self.run()
        except Exception:
            world.violate(f"a {self.name} died: {traceback.format_exc(limit=-3)}")
        except Blocked as blocked:
            if blocked.seconds is not None:
                world.after(max(blocked.seconds, 0.001), self._enter, self._wakes)
