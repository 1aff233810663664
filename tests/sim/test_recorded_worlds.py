"""Simulated worlds whose every snapshot, verdict, command and image is the same when they are simulated again."""

import random
import zlib
from collections.abc import Callable

import pytest
from tests.recorded import assert_repeats
from tests.ring.test_unsaved_worlds import CLUSTERS, NAMES, SUSPENSIONS, some_job

from shoal.core.quota import Quota
from shoal.engine.state_image import encode_image, image_of
from shoal.policy.registry import parse_policy
from shoal.sim.faults import Faults
from shoal.testing.builders import Cycle, simulate

WORLDS = 20
"""Worlds of one record."""

COLUMNS = (
    "state", "gpus", "held", "kind", "incarnation", "seats", "partner", "starts", "crashes", "saves", "attained",
    "run_seconds", "done", "remaining", "remaining_seconds", "rate", "speeds", "unsaved",
)  # fmt: skip


def some_quotas(draw: random.Random, most: int) -> dict[str, Quota]:
    """Quotas of the two tenants whose jobs ``some_job`` makes, or none."""
    if draw.random() < 0.4:
        return {}
    guaranteed = draw.randint(0, most)
    return {
        "a": Quota(guaranteed=guaranteed),
        "b": Quota(gpus=draw.choice([None, max(1, most - 1)]), guaranteed=min(max(1, most - 1), most - guaranteed)),
    }


def world(seed: int, note: Callable[[object], None]) -> None:
    """Simulate the world of a seed and note each cycle, the journal and images of the state."""
    draw = random.Random(seed)
    cluster = draw.choice(list(CLUSTERS))
    most = CLUSTERS[cluster]
    rows = [some_job(draw, f"j{i}", most) for i in range(draw.randint(4, 9))]

    def watch(cycle: Cycle) -> None:
        snapshot, judgement = cycle.snapshot, cycle.judgement
        note((snapshot.now, judgement.commands, judgement.decision.review_at, [*map(cycle.sentence, snapshot.ids)]))
        note([zlib.crc32(getattr(snapshot.columns, name).tobytes()) for name in COLUMNS])
        note((snapshot.unstoppable.tolist(), snapshot.cluster.withheld, snapshot.suspensions.runs))

    run = simulate(
        parse_policy(draw.choice(NAMES)),
        rows,
        cluster,
        placement=draw.choice(("packed", "any", "rack", "network")),
        restart_cost=draw.choice([0.0, 5.0]),
        faults=Faults(node_mtbf=draw.choice([None, 900.0]), node_repair=60.0, checkpoint_every=100.0),
        seed=seed,
        knowledge=draw.choice(("profiled", "oracle", "online")),
        quotas=some_quotas(draw, most),
        most_lost=draw.choice([0.0, 60.0, 600.0]),
        watch=watch,
        suspension=draw.choice(SUSPENSIONS),
        until=4000.0,
    )
    for record in run.journal.read():
        note(record)
    note(zlib.crc32(encode_image(image_of(run.state))))


@pytest.mark.recorded
@pytest.mark.parametrize("first", range(0, 5 * WORLDS, WORLDS))
def test_simulated_worlds_repeat_exactly(first: int) -> None:
    def record() -> list[str]:
        lines: list[str] = []
        for seed in range(first, first + WORLDS):
            world(seed, lambda found: lines.append(repr(found)))
        return lines

    assert_repeats(f"worlds from {first}", record)
