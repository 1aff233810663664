"""The journal's encoding: each record a MessagePack array led by a tag, the same bytes on every machine.

Field order is the dataclass's own; adding a field is a new ``VERSION``.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec

from shoal.core.commands import Command, Decided, Resize, Start, Stop
from shoal.core.errors import JournalError
from shoal.core.events import (
    AppBid,
    BatchChanged,
    Event,
    EventBatch,
    JobCancelled,
    JobCompleted,
    JobCrashed,
    JobMeasured,
    JobProfiled,
    JobReleased,
    JobReshaped,
    JobStarted,
    JobStopped,
    JobSubmitted,
    NodeLost,
    NodeReturned,
)
from shoal.core.goodput import GoodputReport, StepFit
from shoal.core.job import BatchLimits, BatchSetting, JobSpec, Launch
from shoal.core.topology import Placement

VERSION = 4

HEADER, EVENTS, DECISION = 0, 1, 2
"""What leads a raw record."""

_EVENTS: tuple[type, ...] = (
    JobSubmitted,
    JobStarted,
    JobMeasured,
    BatchChanged,
    JobStopped,
    JobCompleted,
    JobCrashed,
    JobCancelled,
    NodeLost,
    NodeReturned,
    JobReleased,
    JobReshaped,
    JobProfiled,
    AppBid,
)
_COMMANDS: tuple[type, ...] = (Start, Stop, Resize)

EVENT_TAGS: Mapping[type, int] = {cls: tag for tag, cls in enumerate(_EVENTS)}
"""What leads an event in a raw record; its fields follow in the dataclass's order."""

COMMAND_TAGS: Mapping[type, int] = {cls: tag for tag, cls in enumerate(_COMMANDS)}
"""What leads a command in a raw record; its fields follow in the dataclass's order, a placement as its seats."""


@dataclass(frozen=True, slots=True)
class Header:
    """What the run is made of, enough to decide everything again. The first record; a control plane that is started
    again on its journal writes another, from which on its settings hold and no policy remembers anything."""

    settings: dict[str, Any]


Record: TypeAlias = Header | EventBatch | Decided

_LENGTHS = {HEADER: 3, EVENTS: 3, DECISION: 4}
_BY_EVENT_TAG = dict(enumerate(_EVENTS))
_BY_BEGIN_TAG: Mapping[int, type[Start] | type[Resize]] = {0: Start, 2: Resize}
_BROKEN = (msgspec.DecodeError, TypeError, ValueError, IndexError, KeyError, RecursionError)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Any])


def _flatten(cls: type) -> Callable[[Any], tuple[Any, ...]]:
    return attrgetter(*(f.name for f in fields(cls)))


_spec_fields = _flatten(JobSpec)
_limit_fields = _flatten(BatchLimits)
_LIMITS = [f.name for f in fields(JobSpec)].index("limits")
_fit_fields = _flatten(StepFit)
_launch_fields = _flatten(Launch)
_event_fields = {cls: (tag, _flatten(cls)) for tag, cls in enumerate(_EVENTS)}


def _pack_event(event: Event) -> tuple[Any, ...]:
    if type(event) is JobSubmitted:
        return (0, event.at, _pack_spec(event.spec), event.launch and _launch_fields(event.launch))
    tag, values = _event_fields[type(event)]
    if type(event) is JobProfiled:
        *plain, _, urgent = values(event)
        return (tag, *plain, _pack_report(event.report), urgent)
    return (tag, *values(event))


def _pack_spec(spec: JobSpec) -> tuple[Any, ...]:
    values = _spec_fields(spec)
    if spec.limits is None:
        return values
    return (*values[:_LIMITS], _limit_fields(spec.limits), *values[_LIMITS + 1 :])


def _pack_report(report: GoodputReport) -> tuple[Any, ...]:
    fits = [(kind, _fit_fields(fit)) for kind, fit in report.fits]
    batch = (report.batch.size, report.batch.accumulation)
    return (fits, report.noise, report.noise_batch, report.seen_gpus, batch, report.remembered)


def _pack_command(command: Command) -> tuple[Any, ...]:
    if type(command) is Stop:
        return (1, command.job, command.incarnation)
    assert not isinstance(command, Stop)
    batch = command.batch and (command.batch.size, command.batch.accumulation)
    tag = 0 if type(command) is Start else 2
    return (tag, command.job, command.incarnation, command.placement.seats, batch, command.partner)


def pack_header(settings: dict[str, Any]) -> bytes:
    """The first record of a journal."""
    return _encoder.encode((HEADER, VERSION, settings))


def pack_events(heard: EventBatch) -> bytes:
    """A batch of events as a record."""
    return _encoder.encode((EVENTS, heard.now, [_pack_event(e) for e in heard.events]))


def pack_decision(decided: Decided) -> bytes:
    """A decision as a record."""
    commands = [_pack_command(c) for c in decided.commands]
    return _encoder.encode((DECISION, decided.digest, decided.review_at, commands))


def checksum(body: bytes) -> int:
    """What is stored beside a record so that damage shows."""
    return zlib.crc32(body)


def unpack_raw(body: bytes) -> list[Any]:
    """A record as the bare array it is stored as: ten times cheaper than objects, for reading long journals.

    ``[HEADER, version, settings]``, ``[EVENTS, now, events]`` or ``[DECISION, digest, review_at, commands]``; only the
    outermost array is checked.
    """
    try:
        raw = _decoder.decode(body)
    except _BROKEN as error:
        raise _refused(error) from error
    if len(raw) != _LENGTHS.get(raw[0] if raw and type(raw[0]) is int else -1):
        raise JournalError(f"not a record of a Shoal journal: it begins {raw[:1]!r} and has {len(raw)} parts")
    if raw[0] == HEADER and raw[1] != VERSION:
        raise JournalError(f"a journal of version {raw[1]!r}: this Shoal reads version {VERSION}")
    return raw


def _refused(error: Exception) -> JournalError:
    return JournalError(f"not a record of a Shoal journal: {error}")


def unpack(body: bytes) -> Record:
    """A record from its bytes; anything that is not one is a ``JournalError``."""
    raw = unpack_raw(body)
    try:
        if raw[0] == EVENTS:
            return EventBatch(raw[1], tuple(_unpack_event(e) for e in raw[2]))
        if raw[0] == DECISION:
            return Decided(raw[1], raw[2], tuple(_unpack_command(c) for c in raw[3]))
        return Header({**raw[2]})
    except _BROKEN as error:
        raise _refused(error) from error


def _unpack_event(raw: list[Any]) -> Event:
    cls = _BY_EVENT_TAG[raw[0]]
    if cls is JobSubmitted:
        return JobSubmitted(raw[1], _unpack_spec(raw[2]), raw[3] and _unpack_launch(raw[3]))
    if cls is JobProfiled:
        at, job, incarnation, rate, done, report, urgent = raw[1:]
        return JobProfiled(at, job, incarnation, rate, done, _unpack_report(report), urgent)
    if cls is AppBid:
        at, app, jobs, rows = raw[1:]
        return AppBid(at, app, tuple(jobs), tuple((gpus, seconds) for gpus, seconds in rows))
    event: Event = cls(*raw[1:])
    return event


def _unpack_spec(raw: list[Any]) -> JobSpec:
    spec = dict(zip((f.name for f in fields(JobSpec)), raw, strict=True))
    spec["kinds"] = spec["kinds"] and tuple(spec["kinds"])
    spec["batch_schedule"] = tuple((at, size) for at, size in spec["batch_schedule"])
    spec["ahead"] = tuple((jobs, gpus, work) for jobs, gpus, work in spec["ahead"])
    spec["limits"] = spec["limits"] and BatchLimits(*spec["limits"])
    return JobSpec(**spec)


def _unpack_report(raw: list[Any]) -> GoodputReport:
    fits, noise, noise_batch, seen_gpus, batch, remembered = raw
    known = tuple((kind, _unpack_fit(fit)) for kind, fit in fits)
    return GoodputReport(known, noise, noise_batch, seen_gpus, BatchSetting(*batch), remembered)


def _unpack_fit(raw: list[Any]) -> StepFit:
    compute, node, network, rack, *rest = raw
    return StepFit(tuple(compute), tuple(node), tuple(network), tuple(rack), *rest)


def _unpack_launch(raw: list[Any]) -> Launch:
    name, command, env, *rest = raw
    return Launch(name, tuple(command), tuple((key, value) for key, value in env), *rest)


def _unpack_command(raw: list[Any]) -> Command:
    if raw[0] == 1:
        return Stop(raw[1], raw[2])
    cls = _BY_BEGIN_TAG[raw[0]]
    seats = tuple((node, count) for node, count in raw[3])
    return cls(raw[1], raw[2], Placement(seats), BatchSetting(*raw[4]) if raw[4] else None, raw[5])
