"""Where concrete live things meet: a home folder and settings become a control plane on its journal."""

import fcntl
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from shoal import __version__
from shoal.core.errors import InputError, JournalError
from shoal.core.job import JobSpec
from shoal.core.retry import FIRST_RETRY
from shoal.core.topology import Locality, Node, Placement, Topology, topology_of
from shoal.core.units import Seconds
from shoal.engine.replay import fold
from shoal.live.accounts import Accounts
from shoal.live.admission import Admission
from shoal.live.backend import LEASE, LiveBackend
from shoal.live.clock import WallClock
from shoal.live.control_plane import About, ControlPlane
from shoal.live.recovery import RecoveredRuns
from shoal.perf.catalog import Catalog
from shoal.perf.profile import LinearProfile
from shoal.scenario.scenario import Scenario
from shoal.store.journal import JournalFile, SqliteJournal, last_settings, settings_of

log = logging.getLogger("shoal.live.home")

JOURNAL = "journal.sqlite"


def home() -> Path:
    """The folder everything live is kept in: ``$SHOAL_HOME``, or ``.shoal`` in one's own."""
    given = os.environ.get("SHOAL_HOME")
    return Path(given) if given else Path.home() / ".shoal"


@dataclass(frozen=True, slots=True)
class Settings:
    """What a control plane is made of. ``roots`` are the folders jobs may work in, anywhere if there are none."""

    home: Path
    scenario: Scenario
    lease: Seconds = LEASE
    first_retry: Seconds = FIRST_RETRY
    roots: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not 0.5 <= self.lease <= 3600:
            raise InputError("lease", self.lease, "must lie between 0.5 and 3600 seconds")


@contextmanager
def open_control_plane(settings: Settings) -> Iterator[ControlPlane]:
    """A control plane on its journal, not turning yet: a new journal, or the one that is there taken up again.

    Two of them cannot be opened on one folder. Leaving the context stops the loop and closes the journal.
    """
    settings.home.mkdir(parents=True, exist_ok=True)
    settings.home.chmod(0o700)
    with _locked(settings.home / "lock"):
        plane = _make_plane(settings)
        plane.start()
        try:
            yield plane
        finally:
            plane.stop()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            hint = "another control plane runs here: stop it, or set SHOAL_HOME to another folder"
            raise InputError("home", str(path.parent), hint) from error
        yield


def _make_plane(settings: Settings) -> ControlPlane:
    path = settings.home / JOURNAL
    scenario = replace(settings.scenario, tolerate_policy_errors=True)
    file = JournalFile(path)
    again = path.exists()
    epoch = time.time()
    if again:
        before = last_settings(file.raw())
        if file.cut is not None:
            hint = f"is damaged ({file.cut}): move it away to begin anew; `shoal replay` shows what is left"
            raise InputError("journal", str(path), hint)
        epoch = _epoch(settings_of(file.read), path)
        scenario = replace(scenario, cluster=grown(Scenario.of_settings(before).cluster, scenario.cluster))
    known, crew = scenario.speeds(), scenario.make_scheduler()
    ledger, recalled = Accounts(scenario.cluster.nodes), RecoveredRuns()
    if again:
        for record in file.read():
            fold((record,), crew.state)
            recalled.take(record)
            ledger.take(record)
    clock = WallClock(epoch, crew.state.now)
    header = {**scenario.settings("live"), "epoch": epoch, "lease": settings.lease, "opened": time.time()}
    journal = SqliteJournal.resume(path, header) if again else SqliteJournal.begin(path, header)
    machines = LiveBackend(
        scenario.cluster, clock, _speed(scenario.cluster, known), settings.lease, settings.first_retry
    )
    machines.begin(recalled, crew.state.topology.down)
    about = About(__version__, scenario.policy, scenario.cluster.describe(), epoch)
    admission = Admission(scenario.cluster, known, settings.roots)
    if again:
        log.info("journal taken up again", extra={"records": file.records, "live": len(ledger.live)})
    return ControlPlane(crew, machines, journal, ledger, admission, about, resumed=again)


def _epoch(first: Mapping[str, Any], path: Path) -> float:
    epoch = first.get("epoch")
    if not isinstance(epoch, float):
        raise JournalError(f"{path}: the journal of a simulation; a live cluster needs a home of its own")
    return epoch


def grown(before: Topology, wanted: Topology) -> Topology:
    """The cluster a journal knows, with the nodes that are wanted now added; those no longer wanted stay, and are down.

    A node keeps its index for ever, since the journal names nodes by it; so one cannot become another.
    """
    known = {node.name: node for node in before.nodes}
    new: list[Node] = []
    for node in wanted.nodes:
        old = known.get(node.name)
        if old is None:
            new.append(node)
        elif (old.kind, old.gpus) != (node.kind, node.gpus):
            given = f"{node.gpus} x {node.kind}"
            hint = f"is {old.gpus} x {old.kind} in this home's journal: give it another name, or begin a new home"
            raise InputError(f"node {node.name}", given, hint)
    prices = {t.name: t.price_per_hour for t in (*before.types, *wanted.types) if t.price_per_hour is not None}
    return topology_of((*before.nodes, *new), prices)


def _speed(topology: Topology, known: Catalog) -> Any:
    """How fast a job is expected to go on seats."""

    def speed(spec: JobSpec, placement: Placement) -> float:
        if spec.model is None:
            return LinearProfile(spec.gpus).rate("", placement.gpus, Locality.SAME_NODE)
        kind = topology.kinds[topology.kind_of(placement)]
        return known.profile(spec.model).rate(kind, placement.gpus, topology.locality(placement), spec.batch_size)

    return speed
