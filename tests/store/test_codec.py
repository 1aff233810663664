"""The journal's encoding: everything comes back as it went in, and nothing else is taken for a record."""

from contextlib import suppress
from dataclasses import fields
from importlib.util import find_spec, module_from_spec
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.refusals import refusal

from shoal.core.batch_limits import BatchLimits
from shoal.core.commands import Command, Decided, Resize, Resume, Start, Stop, Suspend
from shoal.core.errors import JournalError
from shoal.core.events import (
    AppBid,
    BatchChanged,
    CancelRequested,
    Event,
    EventBatch,
    HoldLifted,
    JobCancelled,
    JobCompleted,
    JobCrashed,
    JobHeld,
    JobMeasured,
    JobProfiled,
    JobReleased,
    JobRequeued,
    JobReshaped,
    JobResumed,
    JobSaved,
    JobSetAside,
    JobStarted,
    JobStopped,
    JobSubmitted,
    JobSuspended,
    NodeDrained,
    NodeJoined,
    NodeLost,
    NodeRemoved,
    NodeResumed,
    NodeReturned,
    PolicyOverran,
    PriorityChanged,
    QuotaSet,
    RunsImported,
    SuspensionReported,
    TimeLimitReached,
)
from shoal.core.goodput import GoodputReport, StepFit
from shoal.core.job import BatchSetting, Conditions, JobSpec, Launch, WarningSignal
from shoal.core.quota import Quota
from shoal.core.topology import Placement
from shoal.store import codec
from shoal.store.codec import Base, Header

times = st.floats(0, 1e12)
rates = st.floats(0, 1e9)
numbers = st.integers(0, 2**31 - 1)
small = st.integers(1, 255)
texts = st.text(max_size=20)

specs = st.builds(
    JobSpec,
    id=texts,
    submitted=times,
    gpus=small,
    work=st.none() | rates,
    min_gpus=small,
    max_gpus=small,
    tenant=texts,
    app=st.none() | texts,
    model=st.none() | texts,
    batch_size=st.none() | numbers,
    kinds=st.none() | st.lists(texts, min_size=1, max_size=3).map(tuple),
    weight=rates,
    deadline=st.none() | times,
    speed=rates,
    batch_schedule=st.lists(st.tuples(rates, numbers), max_size=3).map(tuple),
    ahead=st.lists(st.tuples(numbers, small, rates), max_size=3).map(tuple),
    limits=st.none() | st.builds(BatchLimits, small, numbers, small, numbers),
    adaptation=st.sampled_from([None, "accordion", "gns"]),
    preemptible=st.sampled_from(["yes", "auto", "no"]),
    conditions=st.none()
    | st.builds(
        Conditions,
        st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
        st.none() | times,
        st.booleans(),
        st.none() | texts,
        st.none() | small,
    ),
    time=st.none() | times,
    priority=numbers,
    exclusive=st.booleans(),
)
pairs = st.tuples(rates, rates)
fits = st.builds(StepFit, pairs, pairs, pairs, pairs, st.floats(1, 10), small, small, small, rates)
reports = st.builds(
    GoodputReport,
    fits=st.lists(st.tuples(texts, fits), max_size=2).map(tuple),
    noise=rates,
    noise_batch=numbers,
    seen_gpus=numbers,
    batch=st.builds(BatchSetting, numbers, st.integers(0, 100)),
    remembered=st.booleans(),
)
launches = st.none() | st.builds(
    Launch,
    name=texts,
    command=st.lists(texts, min_size=1, max_size=3).map(tuple),
    env=st.lists(st.tuples(texts, texts), max_size=2).map(tuple),
    workdir=st.none() | texts,
    ranks=st.sampled_from(["gpu", "node"]),
    grace=times,
    key=texts,
    signal=st.none() | st.builds(WarningSignal, small, times, st.booleans()),
)
placements = st.lists(st.tuples(numbers, small), min_size=1, max_size=4).map(lambda seats: Placement(tuple(seats)))
batches = st.none() | st.builds(BatchSetting, numbers, st.integers(0, 100))

jobs_of_app = st.lists(numbers, max_size=3).map(tuple)
rows_of_bid = st.lists(st.tuples(small, rates), max_size=3).map(tuple)

EVENTS: dict[type, st.SearchStrategy[Any]] = {
    JobSubmitted: st.builds(JobSubmitted, times, specs, launches),
    JobStarted: st.builds(JobStarted, times, numbers, numbers, rates, rates),
    JobMeasured: st.builds(JobMeasured, times, numbers, numbers, rates, rates),
    BatchChanged: st.builds(BatchChanged, times, numbers, numbers, rates, rates, numbers),
    JobStopped: st.builds(JobStopped, times, numbers, numbers, rates, rates),
    JobCompleted: st.builds(JobCompleted, times, numbers, numbers, rates),
    JobCrashed: st.builds(
        JobCrashed, times, numbers, numbers, rates, st.booleans(), texts, times, st.none() | times, st.none() | numbers
    ),
    JobCancelled: st.builds(JobCancelled, times, numbers, texts, st.booleans()),
    JobHeld: st.builds(JobHeld, times, numbers, texts),
    HoldLifted: st.builds(HoldLifted, times, numbers, texts),
    JobRequeued: st.builds(JobRequeued, times, numbers, numbers, texts),
    TimeLimitReached: st.builds(TimeLimitReached, times, numbers, times, times),
    PriorityChanged: st.builds(PriorityChanged, times, numbers, small, texts),
    NodeLost: st.builds(NodeLost, times, numbers),
    NodeReturned: st.builds(NodeReturned, times, numbers, texts),
    NodeDrained: st.builds(NodeDrained, times, numbers, texts, texts),
    NodeResumed: st.builds(NodeResumed, times, numbers, st.booleans()),
    JobReleased: st.builds(JobReleased, times, numbers),
    JobReshaped: st.builds(JobReshaped, times, numbers, small, small, small),
    AppBid: st.builds(AppBid, times, texts, jobs_of_app, rows_of_bid),
    JobSetAside: st.builds(JobSetAside, times, numbers, texts, times),
    QuotaSet: st.builds(
        QuotaSet,
        times,
        texts,
        st.builds(Quota, st.none() | st.integers(0, 99), st.none() | st.integers(50, 99), st.integers(0, 50)),
    ),
    PolicyOverran: st.builds(PolicyOverran, times, texts),
    RunsImported: st.builds(
        RunsImported,
        times,
        texts,
        st.lists(st.tuples(st.lists(texts, max_size=3).map(tuple), numbers, st.binary(max_size=8))).map(tuple),
    ),
    CancelRequested: st.builds(CancelRequested, times, numbers, times),
    JobSaved: st.builds(JobSaved, times, numbers, numbers, rates, times, st.booleans()),
    JobSuspended: st.builds(JobSuspended, times, numbers, numbers, rates, numbers, times, texts),
    JobResumed: st.builds(JobResumed, times, numbers, numbers, rates, rates, times, texts),
    SuspensionReported: st.builds(SuspensionReported, times, numbers, texts, numbers, st.none() | small, texts),
    NodeJoined: st.builds(NodeJoined, times, numbers, texts, texts, numbers, texts),
    NodeRemoved: st.builds(NodeRemoved, times, numbers),
    JobProfiled: st.builds(JobProfiled, times, numbers, numbers, rates, rates, reports, st.booleans()),
}
COMMANDS: dict[type, st.SearchStrategy[Any]] = {
    Start: st.builds(Start, numbers, numbers, placements, batches, st.none() | numbers),
    Stop: st.builds(Stop, numbers, numbers),
    Resize: st.builds(Resize, numbers, numbers, placements, batches, st.none() | numbers),
    Suspend: st.builds(Suspend, numbers, numbers),
    Resume: st.builds(Resume, numbers, numbers, placements),
}


def test_these_tests_know_every_event_and_every_command() -> None:
    assert set(EVENTS) == set(get_args(Event)) == set(codec.EVENT_TAGS)
    assert set(COMMANDS) == set(get_args(Command)) == set(codec.COMMAND_TAGS)


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_an_event_comes_back_as_it_went_in(kind: type, data: st.DataObject) -> None:
    heard = EventBatch(data.draw(times), tuple(data.draw(st.lists(EVENTS[kind], max_size=3))))
    assert codec.unpack(codec.pack_events(heard)) == heard


@pytest.mark.parametrize("kind", COMMANDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_a_command_comes_back_as_it_went_in(kind: type, data: st.DataObject) -> None:
    review_at = data.draw(times | st.just(float("inf")))
    decided = Decided(
        data.draw(st.integers(0, 2**32 - 1)), review_at, tuple(data.draw(st.lists(COMMANDS[kind], max_size=3)))
    )
    assert codec.unpack(codec.pack_decision(decided)) == decided


settings_ = st.dictionaries(texts, st.none() | st.booleans() | st.integers(-(2**63), 2**63) | texts | times, max_size=5)


@given(settings_)
def test_a_header_comes_back_as_it_went_in(settings: dict[str, Any]) -> None:
    assert codec.unpack(codec.pack_header(settings)) == Header(settings)


@given(st.binary(max_size=20), st.binary(max_size=20))
def test_a_base_comes_back_as_it_went_in(state: bytes, live: bytes) -> None:
    assert codec.unpack(codec.pack_base(Base(state, live))) == Base(state, live)


def test_what_a_foreign_record_begins_with_is_in_the_error() -> None:
    with pytest.raises(JournalError, match=r"it begins \[9\] and has 3 parts"):
        codec.unpack_raw(msgspec.msgpack.encode([9, 8, 7]))


@given(st.lists(st.one_of(*EVENTS.values()), max_size=5))
def test_a_bare_record_leads_with_the_tags_it_promises(events: list[Any]) -> None:
    raw = codec.unpack_raw(codec.pack_events(EventBatch(3.0, tuple(events))))
    assert raw[:2] == [codec.EVENTS, 3.0]
    assert [e[0] for e in raw[2]] == [codec.EVENT_TAGS[type(e)] for e in events]
    assert [e[1] for e in raw[2]] == [e.at for e in events]
    assert [len(e) for e in raw[2]] == [1 + len(fields(e)) for e in events]


def test_the_same_record_is_the_same_bytes() -> None:
    events = (JobStarted(1.0, 2, 3, 4.0, 5.0), NodeLost(1.0, 7))
    # Worked out by hand from the MessagePack specification: fixarray, fixint and float64 in the order of the fields.
    one, four, five = "cb3ff0000000000000", "cb4010000000000000", "cb4014000000000000"
    written = f"9301{one}92960 1{one}0203{four}{five}9308{one}07".replace(" ", "")
    assert codec.pack_events(EventBatch(1.0, events)).hex() == written


def test_tags_never_change_so_that_old_journals_can_be_read() -> None:
    order = "JobSubmitted JobStarted JobMeasured BatchChanged JobStopped JobCompleted JobCrashed JobCancelled NodeLost"
    order += " NodeReturned JobReleased JobReshaped JobProfiled AppBid NodeDrained NodeResumed"
    order += " JobSetAside QuotaSet PolicyOverran CancelRequested JobSaved"
    order += " JobHeld HoldLifted JobRequeued TimeLimitReached PriorityChanged"
    order += " JobSuspended JobResumed SuspensionReported NodeJoined NodeRemoved RunsImported"
    assert {kind.__name__: tag for kind, tag in codec.EVENT_TAGS.items()} == {n: i for i, n in enumerate(order.split())}
    assert {Start: 0, Stop: 1, Resize: 2, Suspend: 3, Resume: 4} == codec.COMMAND_TAGS
    assert (codec.VERSION, codec.HEADER, codec.EVENTS, codec.DECISION) == (4, 0, 1, 2)


def test_a_field_that_an_older_version_did_not_write_has_its_default() -> None:
    crashed = JobCrashed(1.0, 2, 3, 4.0, True, "why", 10.0)
    raw = msgspec.msgpack.decode(codec.pack_events(EventBatch(1.0, (crashed,))))
    raw[2][0] = raw[2][0][:8]
    assert codec.unpack(msgspec.msgpack.encode(raw)) == EventBatch(1.0, (crashed,))
    raw[2][0] = raw[2][0][:6]
    with pytest.raises(JournalError, match="JobCrashed has 11 fields, not 5"):
        codec.unpack(msgspec.msgpack.encode(raw))


def test_values_within_values_are_arrays_of_their_fields() -> None:
    spec = JobSpec(
        "a", 1.0, 2, 9.0, 1, 4, kinds=("v100",), batch_schedule=((3.0, 64),), limits=BatchLimits(8, 64, 1, 32),
        conditions=Conditions((("b", "ok"),), 5.0, array="sweep", most_at_once=2), time=60.0, priority=3,
    )  # fmt: skip
    launch = Launch("name", ("python", "x.py"), (("A", "b"),), in_place=True, signal=WarningSignal(10, 60.0))
    fit = StepFit((0.1, 0.2), (0.3, 0.4), (0.5, 0.6), (0.7, 0.8), 1.5, 64, 2, 1, 0.01)
    report = GoodputReport((("v100", fit),), 5.0, 32, 2, BatchSetting(64, 1), remembered=True)
    batch = EventBatch(
        2.0,
        (
            JobSubmitted(1.0, spec, launch),
            JobProfiled(2.0, 0, 1, 3.0, 4.0, report),
            AppBid(2.0, "app", (0,), ((1, 9.0),)),
        ),
    )
    raw_spec = ["a", 1.0, 2, 9.0, 1, 4, "default", None, None, None, ["v100"], 1.0, None, 1.0, [[3.0, 64]], []]
    raw_launch: list[Any] = ["name", ["python", "x.py"], [["A", "b"]], None, "gpu", 10.0, "", True, None, None, None]
    raw_launch += [[10, 60.0, False], None, False, None, None, []]
    raw_conditions = [[["b", "ok"]], 5.0, False, "sweep", 2]
    raw_fit = [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6], [0.7, 0.8], 1.5, 64, 2, 1, 0.01]
    assert codec.unpack_raw(codec.pack_events(batch))[2] == [
        [0, 1.0, [*raw_spec, [8, 64, 1, 32], None, "yes", raw_conditions, 60.0, 3, False, "", "", ""], raw_launch],
        [12, 2.0, 0, 1, 3.0, 4.0, [[["v100", raw_fit]], 5.0, 32, 2, [64, 1], True], False],
        [13, 2.0, "app", [0], [[1, 9.0]]],
    ]
    seats = Placement(((0, 2), (3, 1)))
    decided = Decided(7, 9.0, (Start(0, 1, seats, BatchSetting(64), 5), Stop(1, 2), Resize(2, 3, seats)))
    assert codec.unpack_raw(codec.pack_decision(decided)) == [
        *(2, 7, 9.0),
        [[0, 0, 1, [[0, 2], [3, 1]], [64, 0], 5], [1, 1, 2], [2, 2, 3, [[0, 2], [3, 1]], None, None]],
    ]


@given(st.binary(max_size=200))
def test_bytes_that_are_no_record_are_a_journal_error(body: bytes) -> None:
    for unpack in (codec.unpack, codec.unpack_raw):
        with suppress(JournalError):
            unpack(body)


jsonish = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=7) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=25,
)


@given(st.integers(0, 3), st.lists(jsonish, max_size=4))
def test_a_message_that_only_looks_like_a_record_is_a_journal_error(tag: int, rest: list[Any]) -> None:
    body = msgspec.msgpack.encode([tag, *rest])
    for unpack in (codec.unpack, codec.unpack_raw):
        with suppress(JournalError):
            unpack(body)


ALMOST = {
    "an event of an unknown kind": [1, 0.0, [[99, 0.0, 1]]],
    "an event of a negative kind": [1, 0.0, [[-1, 0.0, 1]]],
    "an event with a field missing": [1, 0.0, [[1, 0.0, 1]]],
    "an event with a field too many": [1, 0.0, [[8, 0.0, 1, 1]]],
    "a specification with a field missing": [1, 0.0, [[0, 0.0, ["a", 0.0]]]],
    "a command of an unknown kind": [2, 0, 0.0, [[9, 0, 1, [[0, 1]], None, None]]],
    "a seat without a count": [2, 0, 0.0, [[0, 0, 1, [[0]], None, None]]],
    "a record of an unknown kind": [7, 1, {}],
    "a header of another version": [0, codec.VERSION + 1, {}],
    "a header without settings": [0, codec.VERSION],
    "a header whose settings are a list": [0, codec.VERSION, []],
    "a header with a version that is a text": [0, "4", {}],
    "events at a time that is a text": [1, "now", []],
    "events at no time": [1, None, []],
    "events that are a number": [1, 0.0, 5],
    "a digest that is a text": [2, "a", 0.0, []],
    "a review at a time that is a text": [2, 0, "soon", []],
    "commands that are a text": [2, 0, 0.0, "ab"],
    "a base whose state is a text": [3, "ab", b""],
    "an empty array": [],
    "a text": "h",
    "a number": 5,
    "an array nested too deeply": None,
}


def test_a_journal_of_another_version_is_refused_with_the_versions_that_can_be_read() -> None:
    of_later = msgspec.msgpack.encode([codec.HEADER, codec.VERSION + 1, {}])
    readable = f"this Shoal reads versions {codec.READABLE[0]} to {codec.VERSION}"
    with refusal(f"a journal of version {codec.VERSION + 1}: {readable}", JournalError):
        codec.unpack_raw(of_later)


@pytest.mark.parametrize("almost", ALMOST.values(), ids=ALMOST.keys())
def test_almost_a_record_is_refused(almost: Any) -> None:
    body = b"\x91" * 100_000 if almost is None else msgspec.msgpack.encode(almost)
    with pytest.raises(JournalError):
        codec.unpack(body)


def fresh() -> Any:
    """Return another instance of the codec module, whose readers are built now and not when the tests were loaded."""
    spec = find_spec(codec.__name__)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FIT = StepFit((0.1, 0.2), (0.3, 0.4), (0.5, 0.6), (0.7, 0.8), 1.5, 64, 2, 1, 0.01)
NESTED = EventBatch(
    2.0,
    (
        JobSubmitted(1.0, JobSpec("a", 1.0, 2, 9.0, 1, 4), None),
        JobSubmitted(
            1.0,
            JobSpec(
                *("b", 1.0, 2, 9.0, 1, 4),
                kinds=("v100", "k80"),
                batch_schedule=((3.0, 64), (5.0, 128)),
                ahead=((64, 2, 0.5),),
                limits=BatchLimits(8, 64, 1, 32),
            ),
            Launch("name", ("python", "x.py"), (("A", "b"), ("C", "d")), in_place=True),
        ),
        JobStarted(1.0, 2, 3, 4.0, 5.0),
        JobProfiled(2.0, 0, 1, 3.0, 4.0, GoodputReport((("v100", FIT), ("k80", FIT)), 5.0, 32, 2, BatchSetting(64, 1))),
        AppBid(2.0, "app", (0, 1), ((1, 9.0), (2, 5.0))),
        QuotaSet(2.0, "ann", Quota(1, 2, 2)),
    ),
)
MOVES = Decided(
    7,
    9.0,
    (
        Start(0, 1, Placement(((0, 2), (3, 1))), BatchSetting(64), 5),
        Stop(1, 2),
        Resize(2, 3, Placement(((1, 4),))),
    ),
)


def test_readers_build_every_nested_value_from_its_array() -> None:
    made = fresh()
    for record, body in ((NESTED, codec.pack_events(NESTED)), (MOVES, codec.pack_decision(MOVES))):
        read = made.unpack(body)
        assert read == record
        assert repr(read) == repr(record), "tuples, not lists, and values of the same types"


WRONG_LENGTHS = [
    ([1, 0.0, [[1, 0.0, 1]]], "JobStarted has 5 fields, not 2"),
    ([1, 0.0, [[8, 0.0, 1, 1]]], "NodeLost has 2 fields, not 3"),
    ([1, 0.0, [[14, 0.0, 1]]], "NodeDrained has 4 fields, not 2"),
    ([1, 0.0, [[0, 0.0, ["a", 0.0]]]], r"JobSpec has \d+ fields, not 2"),
    ([1, 0.0, [[17, 0.0, "ann", [1, 2, 2, 4]]]], "Quota has 3 fields, not 4"),
    ([2, 0, 0.0, [[1, 0]]], "Stop has 2 fields, not 1"),
    ([2, 0, 0.0, [[0, 0, 1, [[0, 1]], [64, 0, 1]]]], "BatchSetting has 2 fields, not 3"),
    ([2, 0, 0.0, [[0, 0, 1, [[0, 1, 2]]]]], "longer"),
    ([2, 0, 0.0, [[0, 0, 1, [[0]]]]], "shorter"),
]


@pytest.mark.parametrize(("raw", "problem"), WRONG_LENGTHS)
def test_an_array_of_another_length_than_its_type_is_refused(raw: list[Any], problem: str) -> None:
    with pytest.raises(JournalError, match=problem):
        fresh().unpack(msgspec.msgpack.encode(raw))


def test_fields_with_defaults_may_be_absent_at_the_end_of_an_array() -> None:
    raw = [1, 0.0, [[14, 0.0, 1, "why"], [15, 0.0, 1], [17, 0.0, "ann", []]]]
    events = (NodeDrained(0.0, 1, "why"), NodeResumed(0.0, 1), QuotaSet(0.0, "ann", Quota()))
    assert fresh().unpack(msgspec.msgpack.encode(raw)) == EventBatch(0.0, events)
    assert fresh().unpack(msgspec.msgpack.encode([2, 0, 0.0, [[0, 0, 1, [[0, 1]]]]])) == Decided(
        0, 0.0, (Start(0, 1, Placement(((0, 1),))),)
    )


@pytest.mark.parametrize("kind", ["a header whose settings", "events", "a digest", "a review", "commands", "a base"])
def test_the_parts_of_a_bare_record_have_their_types(kind: str) -> None:
    for almost in [value for name, value in ALMOST.items() if name.startswith(kind)]:
        with pytest.raises(JournalError):
            codec.unpack_raw(msgspec.msgpack.encode(almost))
