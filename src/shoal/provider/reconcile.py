"""Compute which allocations to open and to close, from those that are wanted and those that the engine reports.

A pure function: the time and the memory of earlier calls are arguments. Called again with its own memory at the same
time, it does nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeAlias

from shoal.core.units import Seconds
from shoal.provider.protocol import GRACE, Allocation, AllocationState, Seen

FIRST_PAUSE: Seconds = 1.0
LONGEST_PAUSE: Seconds = 120.0
"""Seconds from one try to open or close an allocation to the next: the pause doubles from the first to the longest."""

STABLE: Seconds = 60.0
"""Seconds up after which an allocation that ends is opened again at once."""

SILENCE: Seconds = 60.0
"""Seconds for which the agent of an allocation that is up may be silent before the allocation is closed."""


@dataclass(frozen=True, slots=True)
class Open:
    """Open this allocation."""

    allocation: Allocation


@dataclass(frozen=True, slots=True)
class Close:
    """Close the allocation that the engine knows as ``ref``, for this reason."""

    name: str
    ref: str
    grace: Seconds
    why: str


Act: TypeAlias = Open | Close


@dataclass(frozen=True, slots=True)
class Tries:
    """When an allocation may be opened again, or be asked to close again, and the pause after that try."""

    next_at: Seconds
    pause: Seconds

    def after(self, now: Seconds) -> "Tries":
        """Return these tries with one more, at ``now``, after which the pause doubles."""
        return Tries(now + self.pause, min(2 * self.pause, LONGEST_PAUSE))


_NO_TRIES = Tries(float("-inf"), FIRST_PAUSE)


@dataclass(frozen=True, slots=True)
class Memory:
    """Tries and findings of earlier calls; ``since`` has, by ref of an open allocation, its state since when."""

    opened: Mapping[str, Tries] = field(default_factory=lambda: MappingProxyType({}))
    closed: Mapping[str, Tries] = field(default_factory=lambda: MappingProxyType({}))
    since: Mapping[str, tuple[AllocationState, Seconds]] = field(default_factory=lambda: MappingProxyType({}))


NO_MEMORY = Memory()


def reconcile(
    wanted: Iterable[Allocation],
    seen: Sequence[Seen] | None,
    heard: Mapping[str, Seconds],
    now: Seconds,
    memory: Memory = NO_MEMORY,
    *,
    silence: Seconds = SILENCE,
) -> tuple[list[Act], Memory]:
    """Return the actions to take now, and the memory for the next call.

    ``seen`` is what the engine reports, None if it did not answer: then nothing is done or changed. ``heard`` has the
    time of each agent's last report, by name of its allocation; ``silence`` is the longest time without a report.

    - A wanted allocation that is not open is opened; again after pauses that double up to ``LONGEST_PAUSE``.
    - An open one that is not wanted, or a second one of the same name, is closed; again after such pauses.
    - One that has waited in the engine's queue for longer than its patience is closed, with its whole group.
    - One that is up and whose agent has been silent for longer than ``silence`` is closed.
    """
    if seen is None:
        return [], memory
    by_name = {allocation.name: allocation for allocation in wanted}
    since, kept = _since(seen, memory, now), _kept(seen, by_name)
    closing = _overdue(by_name, kept, since, heard, now, silence) | _surplus(seen, by_name, kept)
    acts: list[Act] = []
    opened = {name: tries for name, tries in memory.opened.items() if name in by_name}
    closed = {ref: tries for ref, tries in memory.closed.items() if ref in closing}
    for ref, (one, why) in closing.items():
        if now >= (tries := closed.get(ref, _NO_TRIES)).next_at:
            acts.append(Close(one.name, ref, by_name[one.name].grace if one.name in by_name else GRACE, why))
            closed[ref] = tries.after(now)
            if kept.get(one.name) is one:
                opened[one.name] = opened.get(one.name, _NO_TRIES).after(now)
    for name, one in kept.items():
        if one.ref not in closing and since[one.ref][0] is AllocationState.UP and now - since[one.ref][1] >= STABLE:
            opened.pop(name, None)
    for name, allocation in by_name.items():
        if name not in kept and now >= (tries := opened.get(name, _NO_TRIES)).next_at:
            acts.append(Open(allocation))
            opened[name] = tries.after(now)
    return acts, Memory(opened, closed, since)


def _surplus(
    seen: Sequence[Seen], wanted: Mapping[str, Allocation], kept: Mapping[str, Seen]
) -> dict[str, tuple[Seen, str]]:
    """Return the allocations that are not wanted, and all but one of those with the same name, by ref."""
    found = {}
    for one in seen:
        if one.name not in wanted and one.state is not AllocationState.ENDED:
            found[one.ref] = one, "it is not wanted any more"
        elif one.state.open and kept[one.name] is not one:
            found[one.ref] = one, "another of its name is open"
    return found


def _since(seen: Sequence[Seen], memory: Memory, now: Seconds) -> dict[str, tuple[AllocationState, Seconds]]:
    """Return, by ref of an open allocation, its state and the time at which it was first seen in it."""
    found = {}
    for one in seen:
        if one.state.open:
            before = memory.since.get(one.ref)
            found[one.ref] = before if before is not None and before[0] is one.state else (one.state, now)
    return found


def _kept(seen: Sequence[Seen], wanted: Mapping[str, Allocation]) -> dict[str, Seen]:
    """Return by name the open allocation to keep: the first that is up, else the first that waits."""
    kept: dict[str, Seen] = {}
    for one in seen:
        if one.state.open and one.name in wanted:
            other = kept.get(one.name)
            if other is None or (other.state is AllocationState.WAITING and one.state is AllocationState.UP):
                kept[one.name] = one
    return kept


def _overdue(
    wanted: Mapping[str, Allocation],
    kept: Mapping[str, Seen],
    since: Mapping[str, tuple[AllocationState, Seconds]],
    heard: Mapping[str, Seconds],
    now: Seconds,
    silence: Seconds,
) -> dict[str, tuple[Seen, str]]:
    """Return by ref the allocations that waited beyond their patience, with their groups, or whose agent is silent."""
    found: dict[str, tuple[Seen, str]] = {}
    impatient: dict[str, str] = {}
    for name, one in kept.items():
        state, at = since[one.ref]
        patience, group = wanted[name].patience, wanted[name].group
        if state is AllocationState.WAITING and patience is not None and now - at >= patience:
            reason = f" ({one.why})" if one.why else ""
            found[one.ref] = one, f"it waited for {patience:g} s{reason}"
            impatient.setdefault(group, f"{name} waited for {patience:g} s{reason}")
        elif state is AllocationState.UP and now - max(at, heard.get(name, at)) >= silence:
            found[one.ref] = one, f"its agent was silent for {silence:g} s"
    impatient.pop("", None)
    for name, one in kept.items():
        if one.ref not in found and wanted[name].group in impatient:
            found[one.ref] = one, impatient[wanted[name].group]
    return found
