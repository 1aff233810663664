"""The journal's encoding: each record is a MessagePack array led by a tag, the same bytes on every machine.

A dataclass is the array of its fields in order, a placement just its seats. New fields go to the end, with a default,
which they have in records of older versions; new events go to the end of ``core.events.Event``, whose order gives the
tags. Any other change needs a new ``VERSION``.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, TypeAlias, get_args, get_origin, get_type_hints

import msgspec

from shoal.core.commands import Decided, Resize, Resume, Start, Stop, Suspend
from shoal.core.errors import JournalError
from shoal.core.events import Event, EventBatch
from shoal.core.topology import Placement

VERSION = 4
READABLE = (3, 4)
"""Versions of the format that can be read; a journal of an older one is continued in the present one."""

HEADER, EVENTS, DECISION, BASE = 0, 1, 2, 3
"""The tags that lead a record."""

EVENT_TAGS: Mapping[type, int] = {cls: tag for tag, cls in enumerate(get_args(Event))}
"""By type of event, the tag that leads it in a record; its fields follow."""

COMMAND_TAGS: Mapping[type, int] = {Start: 0, Stop: 1, Resize: 2, Suspend: 3, Resume: 4}
"""By type of command, the tag that leads it in a record; its fields follow."""


@dataclass(frozen=True, slots=True)
class Header:
    """The settings of a run, enough to decide everything again: the first record of a journal.

    A control plane that resumes a journal writes another header: from there on its settings are in force and policies
    start without ``carry``.
    """

    settings: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Base:
    """The contents of earlier segments as two encoded images: of the ring's state and of the live side.

    It follows the header of a segment. From there on policies start without ``carry``.
    """

    state: bytes
    live: bytes = b""


Record: TypeAlias = Header | EventBatch | Decided | Base

_SHAPES: Mapping[int, tuple[tuple[type, ...], ...]] = {
    HEADER: ((int, int, dict),),
    EVENTS: ((int, float, list), (int, int, list)),
    DECISION: ((int, int, float, list), (int, int, int, list)),
    BASE: ((int, bytes, bytes),),
}
"""By tag, the types of the parts of a record, the tag's own first."""
_BROKEN = (msgspec.DecodeError, TypeError, ValueError, IndexError, KeyError, RecursionError)

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(list[Any])


# ── objects to arrays ─────────────────────────────────────────────────────────────────────────────────────────────


def _has_dataclass(hint: Any) -> bool:
    return is_dataclass(hint) or any(map(_has_dataclass, get_args(hint)))


@cache
def _plan(cls: Any) -> tuple[Callable[[Any], Any], list[int]] | None:
    """Return a getter for a dataclass's fields, and which of them hold dataclasses; None for other types."""
    if cls is Placement:
        return attrgetter("seats"), []
    if not is_dataclass(cls):
        return None
    hints = get_type_hints(cls)
    names = [f"{f.name}.seats" if hints[f.name] is Placement else f.name for f in fields(cls)]
    return attrgetter(*names), [i for i, name in enumerate(names) if name in hints and _has_dataclass(hints[name])]


def _pack(value: Any) -> Any:
    """Return a dataclass, or a tuple of them, as an array; any other value as it is."""
    cls: Any = type(value)
    plan = _plan(cls)
    if plan is None:
        return tuple(map(_pack, value)) if type(value) is tuple else value
    get, nested = plan
    values = get(value)
    return _packed_within(values, nested) if nested else values


def _packed_within(values: Any, nested: list[int]) -> Any:
    """Return the values with the dataclasses among them, at the places ``nested``, as arrays."""
    for i in nested:
        if values[i]:  # most jobs leave these fields empty
            values = list(values)
            values[i] = _pack(values[i])
    return values


def _packer(cls: Any, tag: int) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that makes the array of an event or a command, led by its tag."""
    plan = _plan(cls)
    assert plan is not None
    get, nested = plan
    if not nested:
        return lambda value: (tag, *get(value))
    return lambda value: (tag, *_packed_within(get(value), nested))


_PACK = {cls: _packer(cls, tag) for cls, tag in (*EVENT_TAGS.items(), *COMMAND_TAGS.items())}


def pack_header(settings: dict[str, Any]) -> bytes:
    """Return the first record of a journal."""
    return _encode((HEADER, VERSION, settings))


def pack_events(batch: EventBatch) -> bytes:
    """Return a batch of events as a record."""
    return _encode((EVENTS, batch.now, [_PACK[type(event)](event) for event in batch.events]))


def pack_decision(decided: Decided) -> bytes:
    """Return a decision as a record."""
    commands = [_PACK[type(command)](command) for command in decided.commands] if decided.commands else ()
    return _encode((DECISION, decided.digest, decided.review_at, commands))


def pack_base(base: Base) -> bytes:
    """Return the base of a segment as a record."""
    return _encode((BASE, base.state, base.live))


def checksum(body: bytes) -> int:
    """Return the checksum that is stored beside a record to detect damage."""
    return zlib.crc32(body)


unpack_own: Callable[[bytes], list[Any]] = _decoder.decode
"""Return as ``unpack_raw`` does, but unchecked, a record that this process has made."""


def unpack_raw(body: bytes) -> list[Any]:
    """Return a record as the bare array it is stored as: ten times as fast as objects, for reading long journals.

    ``[HEADER, version, settings]``, ``[EVENTS, now, events]``, ``[DECISION, digest, review_at, commands]`` or ``[BASE,
    state, live]``; only the outermost array and the types of its parts are checked.
    """
    try:
        raw = unpack_own(body)
    except _BROKEN as error:
        raise _refused(error) from error
    shapes = _SHAPES.get(raw[0] if raw and type(raw[0]) is int else -1, ())
    if tuple(map(type, raw)) not in shapes:
        if not any(len(raw) == len(shape) for shape in shapes):
            raise JournalError(f"not a record of a Shoal journal: it begins {raw[:1]!r} and has {len(raw)} parts")
        raise JournalError(f"not a record of a Shoal journal: its parts after {raw[0]} are of other types")
    if raw[0] == HEADER and raw[1] not in READABLE:
        raise JournalError(f"a journal of version {raw[1]!r}: this Shoal reads versions {READABLE[0]} to {VERSION}")
    return raw


def _refused(error: Exception) -> JournalError:
    return JournalError(f"not a record of a Shoal journal: {error}")


# ── arrays to objects ─────────────────────────────────────────────────────────────────────────────────────────────


def _reader(hint: Any) -> Callable[[Any], Any] | None:
    """Return a function that makes a value of this type from its array; None if the stored value is already one."""
    if is_dataclass(hint):
        return _dataclass_reader(hint)
    parts = get_args(hint)
    if get_origin(hint) is UnionType:
        (inner,) = (_reader(part) for part in parts if part is not NoneType)
        return inner and (lambda raw: None if raw is None else inner(raw))
    if get_origin(hint) is not tuple:
        return None
    readers = [_reader(part) for part in parts if part is not Ellipsis]
    if Ellipsis in parts:
        (each,) = readers
        return tuple if each is None else lambda raw: tuple(map(each, raw))
    return lambda raw: tuple(value if read is None else read(value) for read, value in zip(readers, raw, strict=True))


def _dataclass_reader(cls: Any) -> Callable[[Any], Any]:
    hints = get_type_hints(cls)
    readers = [_reader(hints[f.name]) for f in fields(cls)]
    special = [(i, read) for i, read in enumerate(readers) if read is not None]
    least = sum(f.default is MISSING and f.default_factory is MISSING for f in fields(cls))

    def read(raw: list[Any]) -> Any:
        values = [raw] if cls is Placement else list(raw)
        if not least <= len(values) <= len(readers):
            raise ValueError(f"{cls.__name__} has {len(readers)} fields, not {len(values)}")
        for i, read in special:
            if i < len(values):
                values[i] = read(values[i])
        return cls(*values)

    return read


_EVENT_READERS = {tag: _dataclass_reader(cls) for cls, tag in EVENT_TAGS.items()}
_COMMAND_READERS = {tag: _dataclass_reader(cls) for cls, tag in COMMAND_TAGS.items()}


def unpack(body: bytes) -> Record:
    """Return a record from its bytes; anything else raises ``JournalError``."""
    raw = unpack_raw(body)
    try:
        if raw[0] == EVENTS:
            return EventBatch(raw[1], tuple(_EVENT_READERS[e[0]](e[1:]) for e in raw[2]))
        if raw[0] == DECISION:
            return Decided(raw[1], raw[2], tuple(_COMMAND_READERS[c[0]](c[1:]) for c in raw[3]))
        return Header({**raw[2]}) if raw[0] == HEADER else Base(bytes(raw[1]), bytes(raw[2]))
    except _BROKEN as error:
        raise _refused(error) from error
