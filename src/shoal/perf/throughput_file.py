"""Reader of throughput files in Gavel's JSON format, as given with ``--throughputs``.

``file[kind][key]["null"]`` is the rate alone of the job type ``key``, in steps per second of the whole gang, a step
being one minibatch on one worker; ``file[kind][key][other_key]`` is the pair of rates when the two share GPUs, 0 when
they do not fit. A key reads ``('ResNet-50 (batch size 64)', 4)``: the type, and the GPUs. A kind that ends in
``_unconsolidated`` holds the rates of gangs spread over nodes. To lay the result over the built-in catalogue, use
``catalog().extended(read_table(path))``.
"""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec

from shoal.core.errors import InputError
from shoal.perf.catalog import Catalog, TypeKey
from shoal.perf.profile import MeasuredRate, TableProfile

_KEY = re.compile(r"""^\((['"])(?P<model>.+?)(?: \(batch size (?P<batch>[1-9][0-9]*)\))?\1, (?P<gpus>[1-9][0-9]*)\)$""")
_SPREAD = "_unconsolidated"
_ALONE = "null"
_PREFERRED_FOR_PAIRS = "v100"

Key = tuple[str, int, int]
"""A model, a batch size per GPU (1 where the key names none), and a number of GPUs."""

Rates = Mapping[str, Mapping[Key, float]]
"""Samples per second alone, by kind as the file names it."""


def read_table(path: Path) -> Catalog:
    """The catalogue in a throughput file; errors name the file, the key and the value."""
    try:
        data = path.read_bytes()
    except OSError as error:
        reason = error.strerror or "cannot be read"
        raise InputError("throughputs", str(path), f"{reason}; name a readable JSON file") from error
    return parse_table(data, str(path))


def parse_table(data: bytes, where: str) -> Catalog:
    """The catalogue in the text of a throughput file; ``where`` names the file in errors and as the source."""
    try:
        file = msgspec.json.decode(data, type=dict[str, dict[str, dict[str, object]]])
    except msgspec.MsgspecError as error:
        raise InputError("throughputs", where, f"not a throughput file: {error}") from error
    keys = {kind: {text: _key(text, kind, where) for text in table} for kind, table in file.items()}
    rates = {
        kind: {keys[kind][text]: _alone(entry, text, kind, where) for text, entry in table.items()}
        for kind, table in file.items()
    }
    if not any(rates.values()):
        raise InputError("throughputs", where, "has no figures; wanted {kind: {key: {'null': steps per second}}}")
    profiles = _profiles(rates)
    source = f"throughput file {where}"
    named = {(m, kind): source for m, p in profiles.items() for size in p.figures for kind in p.figures[size]}
    return Catalog(profiles, named, dict(_pairs(file, keys, where)))


def _key(text: str, kind: str, where: str) -> Key:
    match = _KEY.match(text)
    if match is None:
        hint = "not a job type; wanted ('MODEL (batch size B)', GPUS), e.g. ('ResNet-50 (batch size 64)', 4)"
        raise InputError(kind, text, hint, where=where)
    return match["model"], int(match["batch"] or 1), int(match["gpus"])


def _alone(entry: Mapping[str, object], text: str, kind: str, where: str) -> float:
    if _ALONE not in entry:
        raise InputError(
            f"{kind}[{text!r}]", sorted(entry)[:1], 'has no "null": the rate alone, in steps/s', where=where
        )
    return _number(entry[_ALONE], f"{kind}[{text!r}][null]", where) * _key(text, kind, where)[1]


def _number(value: object, field: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise InputError(field, value, "wanted a rate in steps per second, 0 or more", where=where)
    return float(value)


def _profiles(rates: Rates) -> dict[str, TableProfile]:
    points: dict[str, dict[int, dict[str, dict[int, MeasuredRate]]]] = {}
    for kind, key in _all_keys(rates):
        model, batch, gpus = key
        together = rates.get(kind, {}).get(key)
        apart = rates.get(kind + _SPREAD, {}).get(key) if gpus > 1 else None
        # A gang that was only measured spread over nodes is at least as fast on one.
        figure = MeasuredRate(gpus, together if together is not None else rates[kind + _SPREAD][key], apart)
        points.setdefault(model, {}).setdefault(batch, {}).setdefault(kind, {})[gpus] = figure
    return {
        model: TableProfile(
            {
                batch: {kind: tuple(by_count[n] for n in sorted(by_count)) for kind, by_count in by_kind.items()}
                for batch, by_kind in sorted(by_batch.items())
            }
        )
        for model, by_batch in points.items()
    }


def _all_keys(rates: Rates) -> Iterator[tuple[str, Key]]:
    for kind in dict.fromkeys(name.removesuffix(_SPREAD) for name in rates):
        yield from ((kind, key) for key in dict.fromkeys((*rates.get(kind, ()), *rates.get(kind + _SPREAD, ()))))


def _pairs(
    file: Mapping[str, Mapping[str, Mapping[str, object]]], keys: Mapping[str, Mapping[str, Key]], where: str
) -> Iterator[tuple[tuple[TypeKey, TypeKey], float]]:
    """Yield the fractions that two types keep beside each other on one GPU; the V100's come last, overriding others."""
    for kind in sorted((k for k in file if not k.endswith(_SPREAD)), key=lambda k: k == _PREFERRED_FOR_PAIRS):
        table = file[kind]
        for text, entry in table.items():
            for other in entry:
                if other == _ALONE:
                    continue
                a, b = keys[kind][text], _key(other, kind, where)
                pair = _both(entry[other], f"{kind}[{text!r}][{other!r}]", where)
                if a[2] == b[2] == 1 and other in table:
                    yield (a[:2], b[:2]), _fraction(pair[0], entry[_ALONE])
                    yield (b[:2], a[:2]), _fraction(pair[1], table[other][_ALONE])


def _both(value: object, field: str, where: str) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != 2:
        raise InputError(field, value, "wanted two rates in steps per second, one for each job", where=where)
    return _number(value[0], field, where), _number(value[1], field, where)


def _fraction(shared: float, alone: object) -> float:
    return min(shared / alone, 1.0) if isinstance(alone, int | float) and alone > 0 else 0.0
