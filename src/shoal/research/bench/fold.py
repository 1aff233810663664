"""Folding a long journal: of a million events, from its last compaction, as a control plane does when it starts."""

from collections import deque
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import process_time

from shoal.core.commands import Decided, Start
from shoal.core.events import Event, EventBatch, JobCompleted, JobStarted, JobSubmitted
from shoal.core.job import JobSpec
from shoal.core.topology import Placement, parse_cluster
from shoal.engine.replay import fold
from shoal.engine.state import State
from shoal.engine.state_image import encode_image, image_of
from shoal.live.compaction import MOST_RECORDS
from shoal.perf.catalog import catalog
from shoal.perf.model import ProfiledModel
from shoal.store.codec import Base, Record, pack_decision, pack_events
from shoal.store.journal import JournalFile, SqliteJournal

EVENTS = 1_000_000
_WAITING, _GPUS = 20_000, 4096


def _records() -> Iterator[EventBatch | Decided]:
    """Records of a full cluster: at each moment a job ends, another starts and a third is submitted."""
    first = [JobSubmitted(0.0, _spec(n, 0.0)) for n in range(_WAITING + _GPUS)]
    yield EventBatch(0.0, tuple(first))
    yield Decided(0, float("inf"), tuple(Start(n, 1, _seat(n)) for n in range(_GPUS)))
    running = deque((n, n) for n in range(_GPUS))  # (job, seat), the next to end first
    yield EventBatch(0.0, tuple(JobStarted(0.0, n, 1, 1.0, 0.0) for n in range(_GPUS)))
    events, submitted, starting, now = _WAITING + 2 * _GPUS, _WAITING + _GPUS, _GPUS, 0.0
    while events < EVENTS:
        now += 1.0
        ended, seat = running.popleft()
        happened: list[Event] = [JobCompleted(now, ended, 1, 1.0), JobSubmitted(now, _spec(submitted, now))]
        if now > 1.0:
            happened.insert(0, JobStarted(now, starting - 1, 1, 1.0, 0.0))
        yield EventBatch(now, tuple(happened))
        yield Decided(0, float("inf"), (Start(starting, 1, _seat(seat)),))
        running.append((starting, seat))
        events, submitted, starting = events + len(happened), submitted + 1, starting + 1


def _spec(number: int, at: float) -> JobSpec:
    return JobSpec(f"job-{number}", at, 1, 1e4, 1, 1, tenant=f"team-{number % 20}")


def _seat(number: int) -> Placement:
    return Placement(((number // 8, 1),))


def _state() -> State:
    world = parse_cluster(f"gpu:{_GPUS // 8}x8")
    return State(world, ProfiledModel(world, catalog()))


def measure(_: Path) -> dict[str, float]:
    """CPU seconds to fold the last segment of a journal of a million events, with as many records as one may have."""
    records, state = list(_records()), _state()
    last = len(records) - MOST_RECORDS
    earlier: list[Record] = [*records[:last]]
    fold(earlier, state)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "journal.sqlite"
        journal = SqliteJournal.begin(path, {}, Base(encode_image(image_of(state))))
        for record in records[last:]:
            journal.append(pack_events(record) if isinstance(record, EventBatch) else pack_decision(record))
        journal.close()
        begin = process_time()
        again = fold(JournalFile(path).read(), _state())
        seconds = process_time() - begin
    return {"seconds": seconds, "live": float(again.live)}
