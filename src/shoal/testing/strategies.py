"""Hypothesis strategies for small clusters and workloads that favour edge cases: ties, full nodes, wide gangs.

Times and sizes are mostly small whole numbers, so that events coincide and gangs fit exactly. Every workload drawn for
a cluster can run there.
"""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from shoal.core.interfaces import Policy
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Locality, Node, Topology, topology_of
from shoal.perf.catalog import catalog
from shoal.policy.classic.fifo import Fifo
from shoal.policy.classic.las import Las
from shoal.policy.classic.shortest import Srtf
from shoal.sim.faults import Faults, JobFault, NodeFault, NodeJoin, Straggler
from shoal.testing.builders import job, simulate
from shoal.workload.schema import Job

KINDS = ("v100", "p100", "k80")
"""Kinds for which the catalogue has measurements, so that jobs can name models."""


@st.composite
def clusters(draw: st.DrawFn, most_kinds: int = 3, most_nodes: int = 6, most_gpus: int = 8) -> Topology:
    """One to three kinds, up to six nodes of up to eight GPUs, in up to two racks, with prices."""
    kinds = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=most_kinds, unique=True))
    sizes = st.sampled_from([n for n in (1, 2, 4, 8, 3) if n <= most_gpus])
    nodes: list[Node] = []
    for i in range(draw(st.integers(len(kinds), max(len(kinds), most_nodes)))):
        kind = kinds[i] if i < len(kinds) else draw(st.sampled_from(kinds))
        nodes.append(Node(f"{kind}-{i}", kind, draw(sizes), f"r{draw(st.integers(0, 1))}"))
    prices = {kind: draw(st.sampled_from([0.5, 1.0, 3.0])) for kind in kinds}
    return topology_of(nodes, prices)


def widest(cluster: Topology) -> int:
    """Return the widest gang that fits on one kind of a cluster."""
    return max(cluster.installed)


@st.composite
def jobs(draw: st.DrawFn, cluster: Topology, id: str, *, latest: int = 1000) -> Job:
    """A job that can run on this cluster: rigid or elastic, of one of three tenants, sometimes of a known model."""
    most = widest(cluster)
    gpus = draw(st.sampled_from([n for n in (1, 2, 4, 8, 3) if n <= most] + [most]))
    seconds = float(draw(st.one_of(st.sampled_from([1, 10, 60, 600]), st.integers(1, 3000))))
    low, high = gpus, gpus
    if draw(st.booleans()):
        low, high = draw(st.integers(1, gpus)), draw(st.integers(gpus, 2 * most))
    made = job(
        id,
        submitted=float(draw(st.one_of(st.just(0), st.sampled_from([0, 10, 60]), st.integers(0, latest)))),
        gpus=gpus,
        seconds=seconds,
        min_gpus=low,
        max_gpus=high,
        tenant=draw(st.sampled_from(["ada", "bob", "cyd"])),
        weight=draw(st.sampled_from([1.0, 1.0, 2.0, 0.5])),
        declares_work=draw(st.sampled_from([True, True, True, False])),
        app=draw(st.sampled_from([None, None, "sweep"])),
    )
    if draw(st.booleans()):
        return made
    named = _models(cluster, gpus)
    return _training(made, cluster, draw(st.sampled_from(named)), draw(st.booleans())) if named else made


def _kinds(cluster: Topology, model: str, gpus: int) -> tuple[str, ...]:
    """Return the kinds of this cluster with speeds for a model; empty if none of them has enough GPUs."""
    profile = catalog().profile(model)
    known = tuple(k for k in cluster.kinds if profile.rate(k, gpus, Locality.CROSS_RACK) > 0)
    return known if any(cluster.installed[cluster.kind_index[k]] >= gpus for k in known) else ()


def _slowest(model: str, kinds: Sequence[str], gpus: int, batch_size: int | None = None) -> float:
    profile = catalog().profile(model)
    return min(profile.rate(kind, gpus, Locality.CROSS_RACK, batch_size) for kind in kinds)


def _models(cluster: Topology, gpus: int) -> list[str]:
    return [m for m in catalog().models if _kinds(cluster, m, gpus)]


def _training(row: Job, cluster: Topology, model: str, scripted: bool) -> Job:
    """Return the job as a training of a model; ``scripted`` changes its batch size half-way."""
    fields = {name: getattr(row, name) for name in Job.__struct_fields__}
    kinds = _kinds(cluster, model, row.gpus)
    work = row.work * _slowest(model, kinds, row.gpus)
    able = [n for n in range(row.min_gpus or 1, (row.max_gpus or 1) + 1) if _slowest(model, kinds, n) > 0]
    own = catalog().default_batch(model)
    sizes = [t.batch_size for t in catalog().types() if t.model == model and t.batch_size != own]
    runs = [size for size in sizes if _slowest(model, kinds, row.gpus, size) > 0]
    script = ((work / 2, runs[-1]),) if scripted and runs and row.min_gpus == row.max_gpus else ()
    fields |= {"model": model, "kinds": kinds, "batch_size": own, "batch_schedule": script, "work": work}
    return Job(**{**fields, "min_gpus": min(able), "max_gpus": max(able)})


@st.composite
def workloads(draw: st.DrawFn, cluster: Topology, *, least: int = 1, most: int = 10) -> tuple[Job, ...]:
    """A few jobs for this cluster, in order of submission."""
    count = draw(st.integers(least, most))
    return tuple(sorted((draw(jobs(cluster, f"job-{i}")) for i in range(count)), key=lambda j: j.submitted))


@st.composite
def faults(draw: st.DrawFn, cluster: Topology, rows: Sequence[Job]) -> Faults:
    """Up to three faults: nodes that return, stragglers, crashes of jobs tried again; and perhaps a node that joins."""
    at, node = st.integers(0, 1500).map(float), st.integers(0, len(cluster.nodes) - 1)
    lost = st.builds(NodeFault, at, node, st.sampled_from([1.0, 60.0, 500.0]))
    slow = st.builds(Straggler, at, node, st.sampled_from([0.25, 0.5]), st.sampled_from([10.0, 300.0]))
    crash = st.builds(JobFault, at, st.integers(0, max(len(rows) - 1, 0)))
    script: list[NodeFault | Straggler | JobFault | NodeJoin] = []
    script += draw(st.lists(st.one_of(lost, slow, crash), max_size=3))
    others = (KINDS[0],) if len(cluster.kinds) > 1 else ()  # tests of one kind stay so
    kinds, sizes = st.sampled_from((*cluster.kinds, *others)), st.sampled_from((1, 4, 8))
    script += draw(st.lists(st.builds(NodeJoin, at, st.builds(Node, st.just("joins"), kinds, sizes)), max_size=1))
    return Faults(script=tuple(script), checkpoint_every=draw(st.sampled_from([30.0, 600.0])))


@st.composite
def worlds(draw: st.DrawFn, *, most_kinds: int = 3, most_jobs: int = 10) -> tuple[Topology, tuple[Job, ...]]:
    """A cluster and a workload for it."""
    cluster = draw(clusters(most_kinds=most_kinds))
    return cluster, draw(workloads(cluster, most=most_jobs))


@st.composite
def snapshots(draw: st.DrawFn, *, most_kinds: int = 3, most_jobs: int = 10) -> Snapshot:
    """A snapshot from the middle of a run under a simple policy: jobs wait, run, stop, and some have ended."""
    cluster, rows = draw(worlds(most_kinds=most_kinds, most_jobs=most_jobs))
    policies: list[Policy] = [Fifo(), Srtf(), Las(quantum=60.0)]
    policy = draw(st.sampled_from(policies))
    run = simulate(policy, rows, cluster, faults=draw(faults(cluster, rows)), placement="any", until=5000.0)
    at = draw(st.integers(0, len(run.cycles) - 1))
    return replace(run.cycles[at].snapshot, carry=None)
