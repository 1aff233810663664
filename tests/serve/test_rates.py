"""How often one may ask: each token by itself, and those without one by where they come from."""

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.serve import ServerLimits
from shoal.serve.errors import RequestError
from shoal.serve.limits import Buckets, Rate

if TYPE_CHECKING:
    from tests.serve.conftest import NewHarness

SLOW = Rate(0.001, 3)


def test_each_token_has_its_own_allowance_and_agents_are_never_held_up(new_harness: "NewHarness") -> None:
    harness = new_harness(ServerLimits(known=SLOW))
    assert [harness.call("GET", "/v1/jobs", "ana").status_code for _ in range(4)] == [200, 200, 200, 429]
    assert harness.call("GET", "/v1/jobs", "bo").status_code == 200
    report = {"protocol": 1, "node": "n0", "boot": "b", "known": 0, "runs": []}
    assert {harness.call("POST", "/v1/agent/sync", "agent", json=report).status_code for _ in range(6)} == {200}
    refused = harness.call("GET", "/v1/jobs", "ana")
    assert 990 <= int(refused.headers["Retry-After"]) <= 1000
    assert refused.json()["hint"]


def test_an_expired_token_has_the_allowance_of_none(new_harness: "NewHarness") -> None:
    harness = new_harness(ServerLimits(unknown=SLOW))
    body = {"name": "old", "role": "agent", "node": "n0", "days": 1e-9}
    harness.secrets["old"] = harness.call("POST", "/v1/tokens", json=body).json()["secret"]
    codes = [harness.call("POST", "/v1/agent/sync", "old", json={}).status_code for _ in range(4)]
    assert codes == [401, 401, 401, 429]


def test_guessing_tokens_is_slowed_by_address_and_delays_no_other_caller(new_harness: "NewHarness") -> None:
    harness = new_harness(ServerLimits(unknown=SLOW))

    async def guess(address: str, times: int) -> list[int]:
        async with harness.client(address) as client:
            guesses = [{"Authorization": f"Bearer {n}"} for n in range(times)]
            return [(await client.get("/v1/jobs", headers=headers)).status_code for headers in guesses]

    assert asyncio.run(guess("192.0.2.7", 5)) == [401, 401, 401, 429, 429]
    assert asyncio.run(guess("192.0.2.8", 1)) == [401]
    assert harness.call("GET", "/v1/jobs", "ana").status_code == 200


@given(
    steps=st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 3)), max_size=60),
    rate=st.builds(Rate, st.floats(0.5, 5), st.floats(1, 10)),
)
def test_no_caller_gets_more_than_its_burst_and_its_rate(steps: list[tuple[str, float]], rate: Rate) -> None:
    now = 0.0
    buckets = Buckets(rate, lambda: now)
    served = {"a": 0, "b": 0}
    for caller, pause in steps:
        now += pause
        try:
            buckets.take(caller)
        except RequestError as refusal:
            now += float(refusal.headers["Retry-After"])
            buckets.take(caller)
        served[caller] += 1
        assert served[caller] <= rate.burst + now * rate.per_second + 1e-6


def test_a_pause_refills_a_bucket_to_its_burst_and_no_further() -> None:
    now = 0.0
    buckets = Buckets(Rate(per_second=2.0, burst=3.0), lambda: now)

    def served() -> int:
        for count in range(100):
            try:
                buckets.take("a")
            except RequestError:
                return count
        raise AssertionError("never refused")

    assert served() == 3, "a caller not seen before starts with its burst"
    now = 0.5
    assert served() == 1, "half a second at two a second"
    now = 1000.0
    assert served() == 3, "a long pause is worth no more than the burst"


def test_the_table_of_callers_does_not_grow_without_bound() -> None:
    buckets = Buckets(SLOW, lambda: 0.0)
    for _ in range(3):
        buckets.take("first")
    with pytest.raises(RequestError):
        buckets.take("first")
    for number in range(10_000):
        buckets.take(str(number))
    buckets.take("first")  # forgotten, and so served afresh
