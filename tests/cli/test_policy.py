"""`shoal policy` shows and switches the policy of a cluster, and has another asked beside it."""

import pytest
from tests.cli.test_live_commands import Fake, Shoal, cluster, given

from shoal.wire.policy_messages import PolicyInForce, ShadowDecision, ShadowDifference, ShadowRow, ShadowUse

__all__ = ["cluster"]

SHADOW = ShadowRow(
    policy="srtf",
    since=1.0,
    compared=9,
    same=7,
    tenants=[ShadowUse("ana", 7200.0, 3600.0)],
    decisions=[
        ShadowDecision(number=1234, at=5.0, differing=1, jobs=[ShadowDifference("a-1", "ana", 4, 0, "waits: long")])
    ],
)


def test_the_policy_and_the_shadows_account_are_shown(shoal: Shoal, cluster: Fake) -> None:
    cluster.answers["GET /v1/policy"] = 200, PolicyInForce("fifo", SHADOW)
    code, out, _ = shoal("policy", "show")
    assert code == 0
    for part in ("policy: fifo", "srtf, 7 of 9 decisions alike", "2.00", "1.00", "1,234", "waits: long"):
        assert part in out
    assert given(shoal, "policy", "show")["shadow"]["same"] == 7


@pytest.mark.parametrize(
    ("args", "path", "body"),
    [
        (("switch", "las"), "POST /v1/policy", {"policy": "las"}),
        (("shadow", "las"), "POST /v1/policy/shadow", {"policy": "las"}),
        (("shadow", "--stop"), "POST /v1/policy/shadow", {"policy": None}),
    ],
)
def test_a_policy_is_switched_and_asked_beside(
    shoal: Shoal, cluster: Fake, args: tuple[str, ...], path: str, body: object
) -> None:
    cluster.answers[path] = 204, {}
    assert shoal("policy", *args)[0] == 0
    assert (cluster.paths()[-1], cluster.asked[-1].body) == (path, body)


@pytest.mark.parametrize("args", [("shadow",), ("shadow", "las", "--stop"), ("switch",)])
def test_a_policy_that_is_not_named_is_bad_input(shoal: Shoal, cluster: Fake, args: tuple[str, ...]) -> None:
    assert shoal("policy", *args)[0] == 2
    assert cluster.paths() == []
