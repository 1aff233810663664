"""The port at which the ranks of a run meet."""

import socket
from pathlib import Path

import pytest

from shoal.agent.rank_port import RankPorts

OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_no_outgoing_connection_can_get_the_port_between_its_choice_and_the_moment_rank_0_listens() -> None:
    ports = RankPorts()
    low, high = map(int, OUTGOING.read_text().split())
    for run in range(20):
        port = ports.reserve((run, 1))
        assert not low <= port <= high
        ports.release((run, 1))
        with socket.create_server(("", port)):
            pass


def test_a_port_is_not_chosen_again_soon() -> None:
    ports, seen = RankPorts(), set[int]()
    for run in range(50):
        seen.add(ports.reserve((run, 1)))
        ports.release((run, 1))
    assert len(seen) == 50


def test_a_port_on_which_another_process_listens_is_passed_over() -> None:
    ports = RankPorts()
    first = ports.reserve((1, 1))
    ports.release((1, 1))
    with socket.create_server(("", first + 1 if first < 29_999 else 20_000)) as taken:
        assert ports.reserve((2, 1)) != taken.getsockname()[1]
    ports.release((2, 1))


def test_a_reserved_port_is_taken_until_it_is_released() -> None:
    ports = RankPorts()
    port = ports.reserve((1, 1))
    with pytest.raises(OSError, match="in use"):
        socket.create_server(("", port), reuse_port=False)
    ports.release((1, 1))
    ports.release((1, 1))
    with socket.create_server(("", port)):
        pass


@pytest.mark.parametrize(
    "range_of_outgoing",
    ["1024 65535", "not two numbers", None],
    ids=["outgoing connections may get every port", "the kernel's file is not understood", "there is no such file"],
)
def test_where_no_port_is_kept_from_outgoing_connections_any_free_one_is_chosen(
    tmp_path: Path, range_of_outgoing: str | None
) -> None:
    file = tmp_path / "range"
    if range_of_outgoing is not None:
        file.write_text(range_of_outgoing)
    ports = RankPorts(file)
    assert ports.reserve((1, 1)) > 0
    ports.release((1, 1))
