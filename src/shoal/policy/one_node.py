"""Which gangs are slower across nodes: policies ask for one node for these, by ``consolidated`` grants or seats."""

from shoal.core.snapshot import JobView, Snapshot
from shoal.core.topology import Placement, Topology


def near_and_far(cluster: Topology, kind: int, gpus: int) -> tuple[Placement, ...]:
    """Return seats on one node and on two, in one rack if possible; only the former if a single node is up."""
    up = [at for at, k in enumerate(cluster.node_kind) if k == kind and at not in cluster.down]
    host = max(up, key=lambda at: cluster.nodes[at].gpus)
    others = [at for at in up if at != host]
    one = Placement(((host, gpus),))
    if not others:
        return (one,)
    beside = next((at for at in others if cluster.nodes[at].rack == cluster.nodes[host].rack), others[0])
    return one, Placement(tuple(sorted(((host, gpus - 1), (beside, 1)))))


def kept_across_nodes(
    snapshot: Snapshot, job: JobView, kind: int, gpus: int, found: dict[tuple[int, int], tuple[Placement, ...]]
) -> float:
    """Return the fraction of its rate on one node that a gang keeps on two, at most 1; 1 where no node can hold it.

    ``found`` keeps the seats by kind and GPUs for further gangs of the same snapshot.
    """
    if (kind, gpus) not in found:
        cluster = snapshot.cluster.keeping(snapshot.cluster.removed, ())  # as installed: nodes that are down return
        found[kind, gpus] = near_and_far(cluster, kind, gpus) if 1 < gpus <= cluster.node_size[kind] else ()
    rates = [snapshot.perf.rate(job, seats).value for seats in found[kind, gpus]]
    return min(rates[1] / rates[0], 1.0) if len(rates) == 2 and rates[0] > 0 else 1.0
