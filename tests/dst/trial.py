"""One trial: a plan carried out in virtual time, with every invariant checked during it and after it."""

import logging
import shutil
import signal
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from tests.dst import faults, invariants, operators
from tests.dst.keeper_servers import server_names
from tests.dst.keepers import keeper_names
from tests.dst.network import Cable, Rejection
from tests.dst.node import SimNode, agent_names
from tests.dst.plan import LEASE, LENGTH, MOST_BLAMED, Fault, Job, Plan
from tests.dst.plane import SimPlane
from tests.dst.ranks import Registry, Truth
from tests.dst.shims import Disk, plane_names, replaced
from tests.dst.suspenders import suspender_names
from tests.dst.world import Clocks, Violated, World

from shoal.core.topology import parse_cluster
from shoal.live.home import Settings
from shoal.scenario.scenario import Scenario
from shoal.wire.messages import Submission

FIRST_RETRY = 0.3
CLIENT_TIMEOUT, CLIENT_PAUSE = 5.0, 0.3

SETTLE_SECONDS = 400.0
"""Virtual seconds after the last repair within which every job must have ended."""

DRIFT = 2e-4
"""The most by which a clock's rate differs from 1: ten times that of a cheap quartz."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of a trial: the violation, if there was one, and a hash of everything that happened."""

    plan: Plan
    violation: str | None
    digest: str
    struck: int
    trace: list[tuple[Any, ...]] = field(repr=False)

    def story(self, most: int = 400) -> str:
        """Return the plan, the last lines of the trace and the violation."""
        lines = [f"{line[0]:9.4f}  {' '.join(map(str, line[1:]))}" for line in self.trace[-most:]]
        return "\n".join([self.plan.describe(), *lines, f"violated: {self.violation}"])


@dataclass
class Trial:
    """A cluster under a plan."""

    plan: Plan
    world: World
    folder: Path
    disk: Disk = field(init=False)
    plane: SimPlane = field(init=False)
    registry: Registry = field(init=False)
    nodes: list[SimNode] = field(default_factory=list)
    twins: list[SimNode] = field(default_factory=list)
    """Machines whose agents have the name of a node, each for the time of a fault."""
    door: Cable = field(init=False)
    acknowledged: dict[str, str] = field(default_factory=dict)
    """By key: the identifier that was acknowledged."""
    cancelled: set[str] = field(default_factory=set)
    """Identifiers of jobs whose cancellation was requested."""
    cancel_acknowledged: set[str] = field(default_factory=set)
    struck: int = 0
    windows: list[tuple[float, float, str]] = field(default_factory=list)
    """Begin, end and kind of each fault."""

    def __post_init__(self) -> None:
        world, plan = self.world, self.plan
        self.disk, self.registry = Disk(world), Registry(world)
        clocks = partial(Clocks, world)
        scenario = Scenario(parse_cluster(f"gpu:{plan.nodes}x{plan.gpus}"), plan.policy)
        self.plane = SimPlane(
            world,
            lambda folder: Settings(folder, scenario, lease=LEASE, first_retry=FIRST_RETRY),
            self.folder / "home",
            clocks(rate=1 + world.rng.uniform(-DRIFT, DRIFT)),
            self.disk,
            on_ack=self._acknowledge,
            segment=plan.segment,
            on_cycle=lambda control_plane: invariants.check_seats(world, control_plane),
        )
        self.disk.die = self.plane.die
        self.door = Cable(world, self.plane, "door")
        self.nodes = [self._machine(node.name, node.gpus, node.name) for node in scenario.cluster.nodes]

    def _machine(self, name: str, gpus: int, address: str) -> SimNode:
        rng, cable = self.world.rng, Cable(self.world, self.plane, address)
        clock = Clocks(self.world, rate=1 + rng.uniform(-DRIFT, DRIFT), origin=rng.uniform(10, 1e6))
        return SimNode(self.world, self.registry, name, gpus, clock, cable, address)

    def twin_of(self, node: SimNode) -> SimNode:
        """Return another machine that is configured with a node's name."""
        twin = self._machine(node.name, node.gpus, f"{node.name}-twin-{len(self.twins)}")
        twin.supervised = False
        self.twins.append(twin)
        return twin

    def run(self) -> None:
        """Carry out the plan, repair everything, and check what is left."""
        world, plan = self.world, self.plan
        self.plane.start()
        for node in self.nodes:
            node.start()
        for job in plan.jobs:
            world.after(job.at, self._submit, job)
            if job.cancel_at is not None:
                world.after(job.cancel_at, self._cancel, job)
        for fault in plan.faults:
            world.after(fault.at, self._strike, fault)
        for request in plan.requests:
            world.after(request.at, operators.send, self, request)
        end = max([LENGTH, *(fault.at + fault.lasts for fault in plan.faults)])
        world.run(end + 2.0)
        self._repair()
        world.run(world.now + SETTLE_SECONDS, lambda: invariants.settled(self))
        invariants.check_settled(self)
        # One job on all GPUs: none of them is lost.
        self._submit(probe_of(plan))
        world.run(world.now + SETTLE_SECONDS, lambda: "probe" in self.acknowledged and invariants.settled(self))
        invariants.check_settled(self)
        world.run(world.now + LEASE)
        invariants.check_end(self)

    # ── clients ───────────────────────────────────────────────────────────────────────────────────────────────

    def _submit(self, job: Job) -> None:
        if job.name not in self.acknowledged:
            self.door.call("submit", [self.wanted(job)], CLIENT_TIMEOUT, partial(self._submitted, job))

    def wanted(self, job: Job) -> Submission:
        """Return what a client submits for a job of the plan."""
        return Submission(
            command=["python"],
            resizes="in_place" if job.in_place else "restart",
            name=job.name,
            gpus=job.gpus,
            min_gpus=job.least,
            max_gpus=job.most,
            # More than it will do, so that only exit statuses say that it is complete.
            work=2 * job.seconds * job.gpus + 1.0,
            grace=job.grace,
            key=job.name,
            tenant=job.tenant,
            retries=MOST_BLAMED - 1,
        )

    def _submitted(self, job: Job, found: Any) -> None:
        if isinstance(found, Rejection) and not found.busy:
            self.world.violate(f"the submission {job.name} was refused: {found}")
        if isinstance(found, Exception):
            self.world.after(CLIENT_PAUSE, self._submit, job)

    def _acknowledge(self, key: str, found: Any) -> None:
        if found is None:
            self.world.note("cancel acknowledged", key)
            self.cancel_acknowledged.add(key)
            return
        (id,) = found
        self.world.note("acknowledged", key, id)
        known = self.acknowledged.setdefault(key, id)
        self.world.check(known == id, f"the submission {key} was acknowledged as {known} and as {id}")

    def _cancel(self, job: Job) -> None:
        id = self.acknowledged.get(job.name)
        if id is None:
            self.world.after(CLIENT_PAUSE, self._cancel, job)
            return
        self.cancelled.add(id)
        self.door.call("cancel", id, CLIENT_TIMEOUT, partial(self._cancel_answered, job))

    def _cancel_answered(self, job: Job, found: Any) -> None:
        if isinstance(found, Rejection) and not found.busy:
            self.world.violate(f"acknowledged and not there: {self.acknowledged[job.name]} ({found})")
        if isinstance(found, Exception):
            self.world.after(CLIENT_PAUSE, self._cancel, job)

    # ── faults ────────────────────────────────────────────────────────────────────────────────────────────────

    def _strike(self, fault: Fault) -> None:
        if faults.strike(self, fault):
            self.struck += 1
            self.windows.append((self.world.now, self.world.now + fault.lasts, fault.kind))
            self.world.note("fault", fault.kind, fault.which, fault.lasts)

    def _repair(self) -> None:
        self.world.note("repaired")
        self.disk.problem = self.disk.crash = self.plane.crash_at = None
        self.disk.sync_fails = 0
        self.plane.clocks.jump, self.plane.poison = 0.0, None
        for cable in (self.door, *(node.cable for node in self.nodes)):
            cable.faults.clear()
        self.plane.resume()
        self.plane.revive()
        if self.plan.requests:
            operators.release(self)
        for twin in self.twins:
            twin.kill(everything=True)
        for node in self.nodes:
            node.spawn_fails = node.disk_fails = node.slow_starts = 0
            node.resume()
            node.revive()
            stopped: list[Any] = [*node.servers.values(), *node.keepers.values(), *node.ranks.values()]
            for process in stopped:
                process.signal(signal.SIGCONT)


def probe_of(plan: Plan) -> Job:
    """Return the job that is submitted after all repairs: it needs every GPU, and runs long enough to be charged."""
    gpus = plan.nodes * plan.gpus
    return Job("probe", 0.0, gpus, gpus, gpus, 10.0, "save", 0.0, 1.0, 0, False, None, "ann")


class _Jobs(dict[str, Truth]):
    """Truths by identifier, made when a rank first names one: identifiers begin with the job's name."""

    def __init__(self, plan: Plan) -> None:
        super().__init__()
        self._known = {job.name: job for job in (*plan.jobs, probe_of(plan))}

    def __missing__(self, id: str) -> Truth:
        self[id] = Truth(self._known[id.rpartition("-")[0]], id)
        return self[id]


def run_plan(plan: Plan, extra: Mapping[str, Mapping[str, Any]] | None = None, *, make: type[Trial] = Trial) -> Result:
    """Run the trial of a plan; ``extra`` names of modules are replaced too, to break the code on purpose."""
    world = World(plan.seed)
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None
    folder = Path(tempfile.mkdtemp(prefix="shoal-dst-", dir=base))
    trial = make(plan, world, folder)
    trial.registry.jobs = _Jobs(plan)
    names: dict[str, dict[str, Any]] = {}
    agents, servers = agent_names(world, trial.registry), server_names(world, trial.registry)
    parts = (plane_names(trial.disk), agents, keeper_names(world), servers, suspender_names(world))
    for path, found in [item for part in parts for item in part.items()]:
        names[path] = {**names.get(path, {}), **found}
    for path, more in (extra or {}).items():
        names[path] = {**names.get(path, {}), **more}
    quiet = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with replaced(world, trial.disk, names):
            try:
                with suppress(Violated):
                    trial.run()
            finally:
                trial.plane.kill()  # closes it while nothing of it runs for real
    finally:
        logging.disable(quiet)
        shutil.rmtree(folder)
    return Result(plan, world.violation, world.digest(), trial.struck, world.trace)
