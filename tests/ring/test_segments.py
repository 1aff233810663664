"""A journal in segments: the records after a base lead to the same state as the whole journal."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from tests.ring.test_ring import Whim

from shoal.core.commands import Decided
from shoal.core.errors import JournalError
from shoal.core.topology import Topology, parse_cluster
from shoal.engine.moves import StopStartPlanner
from shoal.engine.replay import Scheduler, fold, replay
from shoal.engine.state import State
from shoal.engine.state_image import StateImage, decode_image, encode_image, image_of, restore
from shoal.perf.catalog import catalog
from shoal.perf.colocation import EstimatedModel
from shoal.perf.model import ProfiledModel
from shoal.placement.packed import PackedPlacer
from shoal.policy.classic.fifo import Fifo
from shoal.store.codec import Base, Header, Record
from shoal.testing import strategies
from shoal.testing.builders import job, simulate


def empty(cluster: Topology) -> State:
    return State(cluster, ProfiledModel(cluster, catalog()))


def uncalibrated(image: StateImage) -> StateImage:
    """The image without the calibration of predicted lengths, which a base begins with all runs known by then."""
    assert image.lengths is not None
    return replace(image, lengths=replace(image.lengths, quantiles=(), counts=()))


@settings(max_examples=40, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(st.data())
def test_a_segment_replays_from_its_base_and_ends_in_the_same_state(data: st.DataObject) -> None:
    cluster, rows = data.draw(strategies.worlds())
    whim = Whim(data.draw(st.integers(0, 9)))
    log = simulate(whim, rows, cluster, faults=data.draw(strategies.faults(cluster, rows)), until=4000.0)
    records = list(log.journal.read())
    decided = [i for i, record in enumerate(records, start=1) if isinstance(record, Decided)]
    cut = data.draw(st.sampled_from(decided))
    before = fold(records[:cut], empty(cluster))
    base, ended = Base(encode_image(image_of(before))), before.submitted - len(image_of(before).jobs)
    segment: list[Record] = [Header({}), base, *records[cut:]]

    def read() -> Iterator[Record]:
        return iter(segment)

    replayed = replay(read, lambda _: Scheduler(empty(cluster), whim, PackedPlacer(), StopStartPlanner()))
    assert replayed.decisions == sum(isinstance(record, Decided) for record in records[cut:])
    whole = fold(records, empty(cluster))
    expected = uncalibrated(image_of(whole))
    assert uncalibrated(decode_image(replayed.end)) == expected
    assert uncalibrated(image_of(fold([base, *records[cut:]], before))) == expected
    restored = fold(segment, empty(cluster))
    assert len(restored.register.specs) == whole.submitted - ended
    assert restored.free_gpus.freeze() == whole.free_gpus.freeze()
    assert restored.freeze().tenants == whole.freeze().tenants


def test_an_image_holds_no_ended_job_but_the_lengths_of_their_runs() -> None:
    rows = [job(f"j{i}", i, 1, 0.5) for i in range(20)] + [job("last", 30, 1, 1000.0)]
    state = simulate(Fifo(), rows, "gpu:1x4", until=29.0).state
    image = image_of(state)
    assert [kept.spec.id for kept in image.jobs] == ["last"]
    assert image.submitted == 21
    assert image.lengths is not None
    assert [(key, count) for key, count, _ in image.lengths.keys if key == ("all",)] == [(("all",), 20)]
    restore(state, image)
    assert list(state.register.specs) == [20]
    assert state.freeze().columns.rows.tolist() == [20]
    assert state.freeze().ids == ["last"]


def test_a_base_is_restored_on_a_grown_cluster_but_not_on_other_kinds() -> None:
    rows = [job("a", 5, 1, 100.0), job("b", 5, 2, 100.0)]
    image = image_of(simulate(Fifo(), rows, "v100:1x4", until=4.0).state)
    grown = empty(parse_cluster("v100:1x4,k80:1x2"))
    restore(grown, image)
    assert grown.free_gpus.free == [1, 2]
    assert (grown.freeze().columns.speeds > 0).all()
    with pytest.raises(JournalError, match="a base of a cluster of v100 cannot begin a segment on k80"):
        restore(empty(parse_cluster("k80:1x4")), image)


def test_what_is_known_of_pairs_that_do_not_fit_is_kept() -> None:
    cluster = parse_cluster("v100:1x1")
    (one, size), (two, other_size) = next(iter(catalog().shared))
    specs = [job("a", 0, 1, 10.0, model=one).spec(), job("b", 0, 1, 10.0, model=two).spec()]
    state = State(cluster, EstimatedModel(cluster, catalog()))
    state.perf = state.perf.parted(specs[0], size, specs[1], other_size)  # type: ignore[attr-defined]
    other = State(cluster, EstimatedModel(cluster, catalog()))
    restore(other, decode_image(encode_image(image_of(state))))
    assert other.perf.unfit == state.perf.unfit != frozenset()  # type: ignore[attr-defined]


def test_a_base_of_another_version_is_refused_in_one_line() -> None:
    good = encode_image(image_of(empty(parse_cluster("gpu:1x1"))))
    for broken in (b"\x07" + good[1:], good[:10], b""):
        with pytest.raises(JournalError, match="the base of this segment cannot be read"):
            decode_image(broken)
