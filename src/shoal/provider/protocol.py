"""The protocol of providers: allocations on the nodes of an engine, in each of which one agent runs.

An *allocation* is one object of the engine (a Slurm job, a Ray actor, a pod, a local process) on exactly one node. A
provider opens and closes allocations and lists them; everything else is the control plane's. An engine's report never
proves that a process has ended: only an agent's lease ends a run.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, Protocol

from shoal.core.errors import ShoalError
from shoal.core.units import Seconds

GRACE: Seconds = 30.0
"""Seconds between the warning and the end of an allocation whose own are not known."""

SiteState = Literal["up", "draining", "down", "asleep"]
"""State of a node in its engine; a node that is asleep can be woken by ``Provider.ask``."""


class AllocationState(StrEnum):
    """State of an allocation as its engine reports it; a LOST one may still run."""

    WAITING = "waiting"
    UP = "up"
    ENDED = "ended"
    LOST = "lost"

    @property
    def open(self) -> bool:
        """Whether the engine has it, in its queue or on its node."""
        return self in (AllocationState.WAITING, AllocationState.UP)


@dataclass(frozen=True, slots=True)
class Site:
    """A node that an engine has. It is named after its host, so that a node which returns has the same name."""

    name: str
    kind: str
    gpus: int
    rack: str = "r0"
    state: SiteState = "up"
    why: str = ""
    """The engine's reason, where the node is not up."""


@dataclass(frozen=True, slots=True)
class AgentCall:
    """How to start an agent: the arguments of ``python -m shoal.agent``, and its token.

    ``token`` returns the secret, which opens this allocation's orders only. The provider calls it once for each agent
    that it starts and passes the secret by an open file descriptor (``--token-fd``) or a file that only the agent's
    user can read (``--token-file``), never in an environment, an argument or an object that the engine shows.
    """

    arguments: tuple[str, ...]
    token: Callable[[], str] = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Allocation:
    """An allocation that the control plane wants.

    ``name`` is unique in the cluster and stable over restarts of the control plane.
    """

    name: str
    node: str
    kind: str
    gpus: int
    call: AgentCall
    owner: str | None = None
    """The tenant as whose user to run it; None for the provider's own user."""
    image: str | None = None
    grace: Seconds = GRACE
    """Seconds between the warning and the end when it is closed."""
    limit: Seconds | None = None
    """Longest time that the engine should let it run; None for the engine's own limit."""
    patience: Seconds | None = None
    """Seconds for which it may wait in the engine's queue; None for any time."""
    group: str = ""
    """Allocations of one group are of use only together: if one has waited too long, all are closed."""
    account: str | None = None
    """The engine's account to charge; None for the provider's own."""
    cpus: int | None = None
    memory: int | None = None
    """CPUs, and bytes of memory, on the node; None for the engine's default."""
    folders: tuple[str, ...] = ()
    """Folders in which the agent writes: made for the owner where the nodes share this machine's file system."""


@dataclass(frozen=True, slots=True)
class Seen:
    """An allocation as the engine reports it; ``ref`` is the engine's own identifier.

    ``status``: exit status of an ended one, if known. ``cleared``: the engine is certain that no process is left;
    never of a LOST one. ``why``: the engine's reason for its state.
    """

    name: str
    ref: str
    state: AllocationState
    status: int | None = None
    cleared: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True)
class Abilities:
    """The abilities of an engine; a job that needs one it lacks is refused at submission."""

    sharing: bool = True
    """Two jobs on one GPU."""
    users: bool = False
    """Allocations run as the user ``Allocation.owner``."""
    images: bool = False
    """Allocations run in the container image ``Allocation.image``."""
    scales: bool = False
    """``ask`` can bring more nodes."""
    longest_grace: Seconds | None = None
    """Longest time that the engine leaves between warning and kill; None without a limit."""
    native: bool = False
    """One allocation for each part of a run, as its tenant (native mode), not one for each node (pilot mode)."""


class EngineRefusal(ShoalError):
    """The engine refused to open or close an allocation; the text is its reason."""


class EngineAway(ShoalError):
    """The engine did not answer, as the text describes. The allocations last seen count as unchanged."""


class Provider(Protocol):
    """An engine that has nodes and runs agents on them. Each call ends within a few seconds, or ``EngineAway``."""

    @property
    def abilities(self) -> Abilities:
        """The engine's abilities."""
        ...

    def survey(self) -> Sequence[Site]:
        """Return every node that may be used, also those that others use now; may raise ``EngineAway``."""
        ...

    def seen(self) -> Sequence[Seen]:
        """Return all allocations of this cluster, also those of an earlier control plane, by one call to the engine.

        An ended one may be left out. May raise ``EngineAway``.
        """
        ...

    def open(self, allocation: Allocation) -> None:
        """Open an allocation; does nothing if one of its name is open. ``EngineRefusal`` or ``EngineAway`` if not."""
        ...

    def close(self, ref: str, grace: Seconds) -> None:
        """Have an allocation warned and, ``grace`` seconds later, ended; ``seen`` shows the result. May be repeated."""
        ...

    def ask(self, kinds: Mapping[str, int]) -> None:
        """Ask for nodes: by kind, how many GPUs more would be used. May do nothing."""
        ...
