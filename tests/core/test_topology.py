"""Clusters: what can be written, what is refused and how, and what a lost node changes."""

import pytest
from hypothesis import given
from tests.refusals import refusal

from shoal.core.errors import InputError
from shoal.core.topology import AcceleratorType, Locality, Node, Placement, Topology, parse_cluster, topology_of
from shoal.testing import strategies

REFUSED = {
    "nothing at all": "",
    "no counts": "v100",
    "a missing number of GPUs": "v100:4",
    "no nodes": "v100:0x4",
    "nodes without GPUs": "v100:4x0",
    "a negative number": "v100:-1x4",
    "a fraction": "v100:1.5x4",
    "a kind with a space": "my gpu:1x4",
    "a trailing comma": "v100:1x4,",
    "more GPUs on a node than are counted": "v100:1x256",
    "letters for numbers": "v100:axb",
}


@pytest.mark.parametrize("spec", REFUSED.values(), ids=REFUSED.keys())
def test_a_specification_is_refused_with_what_would_be_accepted(spec: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_cluster(spec)
    assert refused.value.field == "cluster"
    assert refused.value.exit_code == 2
    assert "\n" not in str(refused.value)


def test_kinds_keep_the_order_in_which_they_were_written() -> None:
    cluster = parse_cluster("v100:2x4, k80:1x8 ,v100:1x2")
    assert cluster.kinds == ("v100", "k80")
    assert cluster.capacity == (10, 8)
    assert cluster.node_size == (4, 8)
    assert [node.name for node in cluster.nodes] == ["v100-0", "v100-1", "k80-0", "v100-2"]
    assert cluster.describe() == "v100:2x4,k80:1x8,v100:1x2"


def test_nodes_fill_racks_in_order() -> None:
    cluster = parse_cluster("gpu:5x1", nodes_per_rack=2)
    assert [node.rack for node in cluster.nodes] == ["r0", "r0", "r1", "r1", "r2"]


def test_prices_are_kept_and_unknown_where_not_given() -> None:
    cluster = parse_cluster("v100:1x1,k80:1x1", prices={"v100": 2.5})
    assert [t.price_per_hour for t in cluster.types] == [2.5, None]


def test_losing_a_node_takes_its_gpus_from_the_capacity_but_not_from_what_is_installed() -> None:
    whole = parse_cluster("v100:2x4,k80:1x8")
    hurt = whole.without(0)
    assert (hurt.capacity, hurt.installed, hurt.total_gpus) == ((4, 8), (8, 8), 12)
    assert hurt.with_back(0) == whole


def test_distance_follows_from_nodes_and_racks() -> None:
    cluster = topology_of([Node("a", "gpu", 4, "r0"), Node("b", "gpu", 4, "r0"), Node("c", "gpu", 4, "r1")], {})
    assert cluster.locality(Placement(((0, 4),))) is Locality.SAME_NODE
    assert cluster.locality(Placement(((0, 2), (1, 2)))) is Locality.CROSS_NODE
    assert cluster.locality(Placement(((0, 2), (2, 2)))) is Locality.CROSS_RACK


@given(strategies.clusters())
def test_capacity_is_the_sum_over_nodes_that_are_up(cluster: Topology) -> None:
    for lost in range(len(cluster.nodes)):
        hurt = cluster.without(lost)
        for k, kind in enumerate(cluster.kinds):
            assert hurt.capacity[k] == sum(n.gpus for i, n in enumerate(cluster.nodes) if n.kind == kind and i != lost)
        assert hurt.total_gpus == sum(hurt.capacity) == cluster.total_gpus - cluster.nodes[lost].gpus
        assert hurt.installed == cluster.capacity


@given(strategies.clusters())
def test_a_description_reads_back_as_the_same_sizes(cluster: Topology) -> None:
    again = parse_cluster(cluster.describe())
    assert again.capacity == cluster.capacity
    assert [(n.kind, n.gpus) for n in again.nodes] == [(n.kind, n.gpus) for n in cluster.nodes]


def test_kinds_without_a_type_of_their_own_are_added_behind_those_listed() -> None:
    nodes = (Node("n0", "k80", 2), Node("n1", "v100", 4), Node("n2", "p100", 1), Node("n3", "k80", 2))
    assert Topology(nodes).kinds == ("k80", "v100", "p100")
    listed = Topology(nodes, (AcceleratorType("v100", 3.0),))
    assert (listed.kinds, listed.capacity) == (("v100", "k80", "p100"), (4, 4, 1))
    assert [t.price_per_hour for t in listed.types] == [3.0, None, None]


def test_the_largest_node_and_the_largest_cluster_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse_cluster("v100:1x255").total_gpus == 255
    monkeypatch.setattr("shoal.core.topology.MOST_NODES", 3)
    assert len(parse_cluster("v100:2x1,k80:1x1").nodes) == 3
    for spec, group in (("v100:4x1", "v100:4x1"), ("v100:2x1,k80:2x1", "k80:2x1")):
        with pytest.raises(InputError, match=f"'{group}': a cluster can have at most 3 nodes"):
            parse_cluster(spec)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("v100:2x1,k80", "'k80' is not TYPE:NODESxGPUS, e.g. v100:9x4,p100:9x4"),
        ("v100:2x1,k80:0x1", "'k80:0x1' has no GPUs; nodes and GPUs per node must be at least 1"),
        ("v100:2x0", "'v100:2x0' has no GPUs; nodes and GPUs per node must be at least 1"),
        ("v100:2x256", "'v100:2x256': a node can have at most 255 GPUs"),
    ],
)
def test_a_group_that_is_no_group_is_refused_with_the_whole_cluster_and_the_reason(spec: str, why: str) -> None:
    with refusal(f"cluster: {spec!r}: {why}"):
        parse_cluster(spec)


def test_a_caller_may_allow_fewer_or_more_nodes_than_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.core.topology.MOST_NODES", 3)
    assert len(parse_cluster("v100:4x1", most_nodes=4).nodes) == 4
    with pytest.raises(InputError, match="'k80:1x1': a cluster can have at most 2 nodes"):
        parse_cluster("v100:2x1,k80:1x1", most_nodes=2)
