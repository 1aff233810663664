"""What workers conclude from what they told each other."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.trainer.elastic.rules import NOTHING, Readiness, agreed_generation, donors, reusable, worth_keeping


@pytest.mark.parametrize(
    ("ready", "current", "to"),
    [
        pytest.param([5, 5, 5], 4, 5, id="all are ready for the same newer one"),
        pytest.param([5, 4, 5], 4, None, id="one still builds it"),
        pytest.param([5, 6, 5], 4, None, id="one has heard of a newer order"),
        pytest.param([4, 4], 4, None, id="nobody was told anything"),
        pytest.param([7], 2, 7, id="a worker alone agrees with itself"),
    ],
)
def test_a_switch_needs_the_word_of_every_rank(ready: list[int], current: int, to: int | None) -> None:
    assert agreed_generation(ready, current) == to


@pytest.mark.parametrize(
    ("held", "from_whom"),
    [
        pytest.param([12, 12, NOTHING, NOTHING], {2: 0, 3: 1}, id="two who train serve one joiner each"),
        pytest.param([12], {}, id="a worker alone needs nothing"),
        pytest.param([12, 13, 12], {0: 1, 2: 1}, id="one had finished the step in which another died"),
        pytest.param([NOTHING, NOTHING], {1: 0}, id="all begin: the first rank's beginning counts"),
        pytest.param([NOTHING, 0], {0: 1}, id="no step yet is more than nothing"),
    ],
)
def test_ranks_that_are_behind_take_the_state_of_the_most_advanced(held: list[int], from_whom: dict[int, int]) -> None:
    assert donors(held) == from_whom


@given(st.lists(st.integers(NOTHING, 3), min_size=1, max_size=9))
def test_after_handing_over_everybody_holds_the_most(held: list[int]) -> None:
    taken = donors(held)
    after = [held[taken.get(rank, rank)] for rank in range(len(held))]
    assert set(after) == {max(held)}
    assert all(donor not in taken for donor in taken.values())


def test_a_kept_group_serves_again_only_if_every_member_kept_the_same() -> None:
    kept = Readiness(3, stepping=True)
    assert reusable([kept, kept]) == 3
    assert reusable([kept, Readiness(0, stepping=True)]) == 0
    assert reusable([kept, Readiness(2, stepping=True)]) == 0


@given(st.integers(0, 2**24), st.booleans())
def test_what_a_member_says_is_read_back(kept: int, stepping: bool) -> None:
    said = Readiness(kept, stepping)
    assert Readiness.from_text(said.to_text()) == said


def test_groups_are_kept_that_a_later_order_may_shrink_to() -> None:
    assert worth_keeping([(0,), (0, 1), (0, 7), (0, 1, 2, 3)], (0, 1, 2)) == [0, 1]


def test_no_more_than_the_newest_few_groups_are_kept() -> None:
    assert worth_keeping([(number,) for number in range(9)], tuple(range(9))) == [5, 6, 7, 8]
