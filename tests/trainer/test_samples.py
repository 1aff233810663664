"""Every sample of an epoch once, however the world and the batch change on the way."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.errors import InputError
from shoal.trainer.samples import Cursor, Epochs

CHANGES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 40), st.integers(1, 7)), min_size=1, max_size=20)


@given(size=st.integers(1, 150), seed=st.none() | st.integers(0, 9), changes=CHANGES)
def test_an_epoch_uses_each_sample_once_whatever_the_world_the_batch_and_the_passes_are(
    size: int, seed: int | None, changes: list[tuple[int, int, int]]
) -> None:
    epochs, at, used, turn = Epochs(size, seed), Cursor(2), [], 0
    while at.epoch == 2:
        world, batch, most_local = changes[turn % len(changes)]
        turn += 1
        ranks = [epochs.passes(at, batch, rank, world, most_local) for rank in range(world)]
        assert len({len(passes) for passes in ranks}) == 1
        assert all(1 <= len(part.indices) <= most_local for passes in ranks for part in passes)
        used += [index for passes in ranks for part in passes if part.weight for index in part.indices.tolist()]
        assert sum(part.weight for passes in ranks for part in passes) == pytest.approx(world)
        shares = [epochs.share(at, batch, rank, world).tolist() for rank in range(world)]
        assert [index for share in shares for index in share] == epochs.step(at, batch).tolist()
        at = epochs.after(at, batch)
    assert sorted(used) == list(range(size))
    assert at == Cursor(3)


def test_epochs_have_orders_of_their_own_that_the_seed_gives() -> None:
    epochs = Epochs(50, seed=3)
    assert epochs.order(0).tolist() == Epochs(50, seed=3).order(0).tolist()
    assert epochs.order(0).tolist() != epochs.order(1).tolist()
    assert Epochs(5, seed=None).order(4).tolist() == [0, 1, 2, 3, 4]
    assert epochs.seen(Cursor(2, 7)) == 107


@pytest.mark.parametrize(
    ("ask", "field"),
    [
        (lambda: Epochs(0), "size"),
        (lambda: Epochs(5).step(Cursor(), 0), "batch"),
        (lambda: Epochs(5).share(Cursor(), 2, 3, 3), "rank"),
        (lambda: Epochs(5).passes(Cursor(), 2, 0, 1, 0), "most_local"),
    ],
)
def test_what_cannot_be_cut_is_refused_by_name(ask: object, field: str) -> None:
    assert callable(ask)
    with pytest.raises(InputError) as refused:
        ask()
    assert refused.value.field == field
