"""Simulated suspenders: they pause the ranks of a simulated keeper, or now and then refuse to."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from shoal.wire.messages import SuspensionAbility

ABILITY = SuspensionAbility(how="signals", memory=250)
"""Of a simulated node: two suspended runs fit, whose sizes are known."""

BYTES = 100
SUSPENDER_FD = 78


@dataclass(eq=False)
class SimSuspender:
    """The suspender of a simulated keeper."""

    owner: Any
    answers: list[dict[str, Any]] = field(default_factory=list)
    open: bool = True

    def begin(self) -> None:
        """Suspend the ranks after a while."""
        self._after(0.01, 0.5, self._suspend)

    def _after(self, least: float, most: float, action: Callable[[], None]) -> None:
        world = self.owner.world
        world.after(world.rng.uniform(least, most), lambda: action() if self._lives else None)

    @property
    def _lives(self) -> bool:
        return self.open and self.owner.status is None

    def _suspend(self) -> None:
        if self.owner.world.rng.random() < 0.1:
            self._answer({"event": "refused", "cause": "the simulated driver refuses"})
            return
        for rank in list(self.owner.children.values()):
            rank.suspend()
        self._answer({"event": "suspended", "bytes": BYTES, "seconds": 0.1})

    def _resume(self) -> None:
        if self.owner.world.rng.random() < 0.1:
            self._answer({"event": "waiting", "cause": "the simulated memory is in use"})
            return
        for rank in list(self.owner.children.values()):
            rank.resume()
        self._answer({"event": "resumed", "seconds": 0.1})

    def _answer(self, answer: dict[str, Any]) -> None:
        self.answers.append(answer)
        self.owner.wake()

    def fileno(self) -> int:
        return SUSPENDER_FD

    def resume(self) -> None:
        self._after(0.01, 0.5, self._resume)

    def read(self) -> list[dict[str, Any]]:
        found, self.answers = self.answers, []
        return found

    def close(self) -> None:
        self.open = False
        self.owner.suspender = None


def suspender_names(world: Any) -> dict[str, dict[str, Any]]:
    """Return the names to replace, so that no real process is forked or stopped."""

    def start(*_: Any) -> SimSuspender:
        world.machine.suspender = suspender = SimSuspender(world.machine)
        suspender.begin()
        return suspender

    return {
        "shoal.agent.suspension": {"start_suspender": start},
        "shoal.agent.node_agent": {"suspension_ability": lambda: ABILITY},
    }
