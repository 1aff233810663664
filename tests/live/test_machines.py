"""What nodes have and jobs ask for: CPUs and memory."""

from pathlib import Path

import pytest
from tests.live.test_control_plane import job, obey, opened, submit, sync
from tests.refusals import refusal

from shoal.core.errors import InputError
from shoal.core.sizes import read_size, show_size
from shoal.wire.messages import PROTOCOL, Hello


@pytest.mark.parametrize(
    ("text", "size"),
    [("16G", 2**34), ("1.5g", 3 * 2**29), ("500M", 500 * 2**20), ("2 TB", 2**41), ("4GiB", 2**32), ("123", 123)],
)
def test_a_size_is_read_as_slurm_counts(text: str, size: int) -> None:
    assert read_size("memory", text) == size


@pytest.mark.parametrize("text", ["", "G", "-1G", "16X", "1e9", "16 G G"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="must be bytes, or a number with K, M, G or T"):
        read_size("memory", text)


def test_a_size_is_shown_in_its_unit() -> None:
    assert [show_size(size) for size in (2**34, 3 * 2**29, 12)] == ["16 GB", "1.5 GB", "12 bytes"]


def test_a_job_that_asks_for_more_than_any_node_has_is_refused_with_the_numbers(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        nodes = plane.backend.topology.nodes
        large, small = job("a", 1, cpus=9, memory=2**34), job("b", 1, cpus=8, memory=2**33)
        assert submit(plane, large), "nothing is refused before every node has said what it has"
        for node in nodes:
            plane.hello(Hello(PROTOCOL, node.name, "boot", node.kind, node.gpus, "", 8, 2**33, "no cgroups"))
        with refusal("cpus: 9: is per rank, and the most that a node has is 8"):
            plane.submit([large], "ann")
        with refusal("memory: '16 GB': is per node, and the most that a node has is 8 GB"):
            plane.submit([job("c", 1, memory=2**34)], "ann")
        submit(plane, small)
        row = plane.nodes(None)[0]
        assert (row.cpus, row.memory, row.no_limits) == (8, 2**33, "no cgroups")


def test_limits_reach_the_agents_order_also_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as plane:
        submit(plane, job("a", 2, cpus=3, memory=2**30))
        obey(plane, "gpu-0")
    with opened(tmp_path) as plane:
        (order,) = sync(plane, "gpu-0", []).runs
        assert (order.cpus, order.memory) == (3, 2**30)
