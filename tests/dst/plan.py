"""A trial's plan: the cluster, the jobs and the faults, all from one seed."""

import random
from collections.abc import Collection
from dataclasses import dataclass

POLICIES = ("fifo", "srtf", "las", "max-min")

LEASE, MARGIN = 3.0, 2.0
LONGEST_GRACE = 2.0

LENGTH = 60.0
"""Seconds within which jobs are submitted and faults begin."""

MOST_BLAMED = 5
"""Crashes of its own that fail a job."""

FAULTS = {
    # The control plane: killed, killed at a commit or while its journal's next segment begins, restarted in order,
    # suspended, and its wall clock set.
    "plane.kill": 10, "plane.commit": 12, "plane.switch": 8, "plane.term": 3, "plane.pause": 6, "plane.clock": 2,
    # Its disk: full, failing, or failing only when a folder is flushed.
    "disk.full": 4, "disk.io": 3, "disk.sync": 4,
    # A node: its agent, its keepers, its ranks, or all of them; or an agent of its name on another machine.
    "agent.kill": 8, "agent.pause": 6, "agent.term": 3, "agent.twin": 3, "keeper.kill": 6, "keeper.pause": 4,
    "rank.kill": 5, "rank.pause": 3, "machine.kill": 6, "node.disk": 4, "node.spawn": 3,
    "node.slow": 5, "node.freeze": 3,
    # A node's connection: cut with a reset or into silence, both ways or one way; slow, lossy or repeating.
    "net.cut": 6, "net.silent": 6, "net.up": 4, "net.down": 4, "net.slow": 6, "net.hold": 5,
    "net.drop": 5, "net.repeat": 5,
    # The policy: it raises, or takes too long, because of one job.
    "policy.raise": 4, "policy.slow": 3,
    # The clients' connection.
    "door.cut": 4, "door.down": 3,
}  # fmt: skip
"""Kinds of faults and how often each is drawn."""

KNOWN: dict[str, str] = {}
"""Kinds that the code does not survive yet and what goes wrong; left out of plans by default."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job to submit. ``seconds`` is its run time on ``gpus`` GPUs.

    ``style`` is what its ranks do on SIGTERM: "save" takes ``saving`` seconds and exits with 0, "die" ends at once by
    the signal, "ignore" goes on. The first ``crashes`` runs of it crash.
    """

    name: str
    at: float
    gpus: int
    least: int
    most: int
    seconds: float
    style: str
    saving: float
    grace: float
    crashes: int
    reports: bool
    cancel_at: float | None
    tenant: str
    in_place: bool = False


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault: when, of what kind, and for how long; ``which`` picks one of the things it may strike."""

    at: float
    kind: str
    which: int
    lasts: float


@dataclass(frozen=True, slots=True)
class Request:
    """A request of an operator or user: "reshape", "quota", "drain" or "resume"; ``which`` chooses its values."""

    at: float
    kind: str
    which: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Everything a trial depends on."""

    seed: int
    policy: str
    nodes: int
    gpus: int
    jobs: tuple[Job, ...]
    faults: tuple[Fault, ...]
    segment: int = 50_000
    """Records after which the journal's next segment begins."""
    requests: tuple[Request, ...] = ()

    @classmethod
    def of(cls, seed: int, *, jobs: int = 16, without: Collection[str] = tuple(KNOWN)) -> "Plan":
        """Return the plan of a seed; kinds of faults in ``without`` are left out."""
        rng = random.Random(seed)
        faults = rng.choice((5, 40, 60, 90))
        nodes, gpus = rng.choice(((2, 2), (3, 2), (3, 2), (2, 4)))
        wanted = tuple(_job(rng, number, nodes * gpus) for number in range(rng.randint(jobs // 2, jobs)))
        drawn = sorted((_fault(rng) for _ in range(faults)), key=lambda fault: fault.at)
        struck = tuple(fault for fault in drawn if fault.kind not in without)
        segment = rng.choice((8, 30, 100, 50_000))
        requests = tuple(_request(rng) for _ in range(rng.choice((0, 0, 4, 12))))
        return cls(seed, POLICIES[seed % len(POLICIES)], nodes, gpus, wanted, struck, segment, requests)

    def describe(self) -> str:
        """Return the plan, a line for each job and fault."""
        head = f"seed {self.seed}: {self.policy} on {self.nodes} x {self.gpus} GPUs, segments of {self.segment} records"
        return "\n  ".join([head, *map(str, self.jobs), *map(str, self.requests), *map(str, self.faults)])


def _job(rng: random.Random, number: int, all_gpus: int) -> Job:
    gpus = min(all_gpus, rng.choice((1, 1, 1, 2, 2, 3, 4)))
    elastic = rng.random() < 0.35
    at = round(rng.uniform(0.0, LENGTH * 0.8), 2)
    return Job(
        name=f"j{number}",
        at=at,
        gpus=gpus,
        least=1 if elastic else gpus,
        most=min(all_gpus, gpus + 2) if elastic else gpus,
        seconds=round(rng.choice((0.3, 4.0, 10.0, 20.0)) * rng.uniform(0.7, 1.3), 2),
        style=rng.choice(("save", "save", "die", "ignore")),
        saving=round(rng.uniform(0.0, 2.5), 2),
        grace=rng.choice((0.5, 1.0, LONGEST_GRACE)),
        crashes=rng.choice((0, 0, 0, 0, 0, 0, 1, 2, 99)),
        reports=rng.random() < 0.4,
        cancel_at=round(at + rng.uniform(0.0, 12.0), 2) if rng.random() < 0.15 else None,
        tenant=rng.choice(("ann", "bob")),
        in_place=elastic and rng.random() < 0.5,
    )


def _request(rng: random.Random) -> Request:
    kind = rng.choice(("reshape", "reshape", "quota", "drain", "resume"))
    return Request(round(rng.uniform(0.5, LENGTH), 2), kind, rng.randrange(1000))


def _fault(rng: random.Random) -> Fault:
    kind = rng.choices(list(FAULTS), list(FAULTS.values()))[0]
    # Most faults pass before anybody's lease ends; some outlast lease, grace and margin.
    longer = rng.random() < 0.25
    lasts = rng.uniform(1.0, 2.0) * (LEASE + LONGEST_GRACE + MARGIN) if longer else rng.uniform(0.0, LEASE)
    return Fault(round(rng.uniform(0.5, LENGTH), 2), kind, rng.randrange(1000), round(lasts, 2))
