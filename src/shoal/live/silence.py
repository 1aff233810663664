"""Silent agents: when one counts as lost, and when the runs of a lost one are certainly gone."""

from dataclasses import dataclass
from math import inf

from shoal.core.units import Seconds
from shoal.live.agent_status import AgentStatus
from shoal.live.native_runs import withdraw
from shoal.live.runs import RunRegistry

MARGIN: Seconds = 2.0
"""Seconds to kill ranks, added to lease and grace before a node counts as lost."""

_LOOK_AGAIN: Seconds = 1.0
"""Seconds between two checks of a silent node whose runs are within their grace."""


@dataclass(slots=True)
class Silence:
    """Decides from leases and graces which silent agents are lost; the caller holds the backend's lock."""

    runs: RunRegistry
    lease: Seconds

    def quiet_at(self, agent: AgentStatus) -> Seconds:
        """Return when a silent agent has no run without grace left; each other run is gone its own grace later."""
        return agent.last_contact + self.lease + MARGIN

    def _next_look(self, agent: AgentStatus) -> Seconds:
        """Return when an agent counts as lost unless it reports, or when the next run of a lost one is gone.

        A silent agent counts as lost when it has killed the first of its runs.
        """
        if not agent.up:
            return self.runs.waits.next_settlement(agent)
        return self.quiet_at(agent) + min((gang.launch.grace for gang in agent.gangs.values()), default=0.0)

    def next_tick(self) -> Seconds:
        """Return the ring's time of the next deadline, in seconds."""
        runs = self.runs
        of_runs = map(self._next_look, runs.agents.of_runs)
        held = runs.held.releases.next, runs.held.limits.next
        return min(runs.waits.next_look, *held, runs.health.next_probe, *of_runs, inf)

    def tick(self, now: Seconds) -> None:
        """Carry out what is due: lose silent agents, settle the runs of lost ones, release held jobs, probe nodes."""
        runs = self.runs
        for agent in runs.waits.due(now):
            self._look(agent, now)
            at = self._next_look(agent)
            if agent.up:  # runs with less grace may come meanwhile
                at = max(self.quiet_at(agent), min(at, now + _LOOK_AGAIN))
            runs.waits.look(agent, at)
        if runs.agents.native:
            for agent in tuple(runs.agents.of_runs):
                self._look(agent, now)
            withdraw(runs, now)
        runs.release(now)
        runs.probe(now)

    def _look(self, agent: AgentStatus, now: Seconds) -> None:
        if now < self._next_look(agent):
            return
        if agent.up:
            self.runs.lose(agent.key, now, self.quiet_at(agent))
        else:
            self.runs.settle(agent.key, now)
