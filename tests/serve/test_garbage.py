"""Garbage collection in a process whose objects live long."""

import gc
import weakref
from collections.abc import Iterator

import pytest

from shoal.serve.garbage import no_collections, short_collections


class Circle:
    """An object that only a collection frees."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def _nothing_frozen() -> Iterator[None]:
    gc.unfreeze()
    gc.collect()
    yield
    gc.unfreeze()


def test_a_full_collection_frees_what_was_made_since_the_last_one_and_leaves_the_rest_for_later() -> None:
    now = 0.0
    with short_collections(lambda: now):
        kept = Circle()
        gc.collect()
        assert gc.get_freeze_count() > 0
        old, kept = weakref.ref(kept), Circle()
        young = weakref.ref(kept)
        del kept
        gc.collect()
        assert young() is None
        assert old() is not None
        now = 300.0
        gc.collect()
        assert old() is None


def test_later_full_collections_do_not_look_at_what_has_survived_one() -> None:
    with short_collections():
        kept = [Circle() for _ in range(1000)]
        gc.collect()
        assert not any(type(each) is Circle for each in gc.get_objects())
    assert sum(type(each) is Circle for each in gc.get_objects()) == len(kept)


def test_a_young_collection_freezes_nothing() -> None:
    with short_collections():
        gc.collect(1)
        assert gc.get_freeze_count() == 0


def test_nothing_is_collected_while_many_objects_are_made_and_collection_goes_on_afterwards() -> None:
    with no_collections():
        assert not gc.isenabled()
        with no_collections():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_start_that_fails_leaves_collection_enabled() -> None:
    with pytest.raises(OSError, match="disk"), no_collections():
        raise OSError("disk")
    assert gc.isenabled()
