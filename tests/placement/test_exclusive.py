"""Exclusive jobs have their nodes for themselves, under every placer and policy."""

import pytest

from shoal.core.commands import Resize, Start
from shoal.policy.registry import POLICIES, parse_policy
from shoal.testing.builders import PlacementName, job, simulate

PLACERS: tuple[PlacementName, ...] = ("packed", "any", "rack", "network")
NAMES = (*POLICIES, "gavel.max-min:space_sharing=true")


@pytest.mark.parametrize(
    ("name", "placement"),
    [*((name, PLACERS[i % len(PLACERS)]) for i, name in enumerate(NAMES)), *(("fifo", placer) for placer in PLACERS)],
)
def test_an_exclusive_job_holds_all_gpus_of_its_nodes_and_ends(name: str, placement: PlacementName) -> None:
    rows = [job(f"j{i}", 5.0 * i, 1 + i % 3, 40) for i in range(6)]
    rows += [job("one", 12.0, 4, 60, exclusive=True), job("two", 3.0, 8, 30, exclusive=True)]
    run = simulate(parse_policy(name), rows, "gpu:3x4", placement=placement, until=1e5)
    assert run.completed.keys() == {row.id for row in rows}
    for _, command in run.commands:
        if isinstance(command, Start | Resize) and run.jobs[command.job].exclusive:
            assert {count for _, count in command.placement.seats} == {4}
            assert command.partner is None
