"""Decode JSON and plain data into typed structures; a failure is an ``InputError`` with the field, value and hint.

msgspec reports a failure as text only. Here the offending part is found by converting the parts of the data one by one,
so no text of the library is parsed. A type may carry its own hint: ``Meta(extra=hint("must be …"))``.
"""

import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints, overload

import msgspec
from msgspec import inspect

from shoal.core.errors import InputError, nearest

_T = TypeVar("_T")
_HINT = "hint"
_KEY = ""
"""Step of the path to a key of a mapping: the key's problem is reported at the mapping. JSON keys are always text."""


class NotJson(InputError):
    """The text is not one JSON document."""


def hint(text: str) -> dict[str, str]:
    """Metadata that replaces the generated hint of a type: ``Annotated[str, Meta(…, extra=hint("must be …"))]``."""
    return {_HINT: text}


def decode(raw: bytes, to: type[_T], *, whole: str = "body") -> _T:
    """Decode a JSON document into a value of type ``to``; ``whole`` names the document in errors about all of it."""
    try:
        try:
            return msgspec.json.decode(raw, type=to)
        except (InputError, msgspec.ValidationError) as error:  # an InputError is raised by a type's own rules
            failure = error
        data = json.loads(raw, parse_float=_finite)
    except RecursionError:
        raise NotJson(whole, None, "is nested too deeply; send fewer levels") from None
    except ValueError as error:
        raise NotJson(whole, None, f"is not JSON: {error}") from None
    raise locate(data, to, whole=whole) or InputError(whole, None, str(failure))


@overload
def convert(
    data: object, to: type[_T], *, whole: str = "value", under: str = "", strict: bool = True
) -> _T: ...  # an annotated type is not a ``type``, hence the other form
@overload
def convert(data: object, to: Any, *, whole: str = "value", under: str = "", strict: bool = True) -> Any: ...
def convert(data: object, to: Any, *, whole: str = "value", under: str = "", strict: bool = True) -> Any:
    """Convert plain data to a value of type ``to``; unless ``strict``, text may stand for numbers and truth values.

    ``whole`` names the data in errors about all of them; paths in errors begin with ``under``.
    """
    try:
        return msgspec.convert(data, to, strict=strict)
    except (InputError, msgspec.ValidationError) as error:
        found = locate(data, to, whole=whole, under=under, strict=strict)
        raise found or InputError(under or whole, data, str(error)) from None


def locate(data: object, to: Any, *, whole: str, under: str = "", strict: bool = True) -> InputError | None:
    """Return the first part of ``data`` that cannot be converted to its type, as an error; None if all can.

    The field is the part's path (``jobs[1].gpus``), or ``whole`` for the data themselves.
    """
    found = _first_problem(data, to, under, strict)
    if found is None:
        return None
    path, value, text = found
    return InputError(path.removeprefix(".") or whole, value, text)


def _finite(text: str) -> float | str:
    """Return a float; a number out of range, which msgspec refuses, stays text, so that an error can name its field."""
    number = float(text)
    return number if math.isfinite(number) else text


_Problem = tuple[str, object, str]


def _first_problem(data: object, to: Any, path: str, strict: bool) -> _Problem | None:
    try:
        msgspec.convert(data, to, strict=strict, str_keys=True)
    except (InputError, msgspec.ValidationError) as error:
        failure = error
    else:
        return None
    bare = _required(to)
    for step, value, of in _parts(data, bare):
        found = _first_problem(value, of, path + step, strict and step != _KEY)
        if found is not None:
            return found
    if isinstance(failure, InputError):  # raised by the type's own rules, not by those of a part
        return f"{path}.{failure.field}", failure.value, failure.hint
    if failure.__cause__ is not None:
        return path, data, str(failure.__cause__)
    return _field_problem(data, bare, path) or (path, data, _expected(bare, data) or str(failure))


def _required(to: Any) -> Any:
    """Return the type without ``None``, if one type is left."""
    if get_origin(to) in (Union, UnionType):
        others = [choice for choice in get_args(to) if choice is not NoneType]
        return others[0] if len(others) == 1 else to
    return to


def _parts(data: object, to: Any) -> Iterator[tuple[str, object, Any]]:
    """Yield the parts of the data that are present: step of the path, value and type."""
    plain = get_args(to)[0] if get_origin(to) is Annotated else to
    origin, args = get_origin(plain), get_args(plain)
    if isinstance(data, Mapping):
        if origin in (dict, Mapping):
            for key, value in data.items():
                yield _KEY, key, args[0]
                yield f".{key}", value, args[1]
        for name, of in _fields(plain).items():
            if name in data:
                yield f".{name}", data[name], of
    elif isinstance(data, list | tuple) and origin in (list, tuple, set, frozenset):
        types = args if origin is tuple and args[-1] is not ... else args[:1] * len(data)
        for index, (item, of) in enumerate(zip(data, types, strict=False)):
            yield f"[{index}]", item, of


def _fields(plain: Any) -> dict[str, Any]:
    if not isinstance(plain, type):
        return {}
    if issubclass(plain, msgspec.Struct):
        return {field.encode_name: field.type for field in msgspec.structs.fields(plain)}
    return get_type_hints(plain, include_extras=True) if dataclasses.is_dataclass(plain) else {}


def _field_problem(data: object, to: Any, path: str) -> _Problem | None:
    """Return the problem of a missing or unknown field, if there is one."""
    info = inspect.type_info(to)
    if not isinstance(info, inspect.StructType | inspect.DataclassType) or not isinstance(data, Mapping):
        return None
    fields = {field.encode_name: field for field in info.fields}
    for name in data:
        if name not in fields and getattr(info, "forbid_unknown_fields", False):
            return f"{path}.{name}", data[name], nearest(str(name), fields)
    for name, of in _fields(info.cls).items():
        if name not in data and fields[name].required:
            text = _expected(_required(of), None)
            return f"{path}.{name}", None, f"is missing: {text}" if text else "is missing"
    return None


# ── the hint ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _own_hint(info: inspect.Type) -> str | None:
    return (info.extra or {}).get(_HINT) if isinstance(info, inspect.Metadata) else None


def _expected(to: Any, value: object) -> str | None:
    """Return what a value of the type must be; None for types without a description here."""
    info = inspect.type_info(to)
    own = _own_hint(info)
    info = info.type if isinstance(info, inspect.Metadata) else info
    if isinstance(info, inspect.StrType) and value is not None and not isinstance(value, str):
        return "must be text, in quotes"
    return own or _described(info)


def _described(info: inspect.Type) -> str | None:
    match info:
        case inspect.BoolType():
            text = "true or false"
        case inspect.IntType():
            text = "a whole number" + _bounds(info)
        case inspect.FloatType():
            text = "a number" + _bounds(info)
        case inspect.StrType():
            text = "text" + _lengths(info, "characters") + (f" that matches {info.pattern}" if info.pattern else "")
        case inspect.ListType() | inspect.VarTupleType():
            text = "a list" + _lengths(info, "items")
        case inspect.TupleType():
            text = f"a list of {len(info.item_types)} values"
        case inspect.DictType() | inspect.StructType() | inspect.DataclassType():
            text = "an object: fields and values"
        case inspect.LiteralType():
            text = " or ".join(map(str, info.values))
        case _:
            return None
    return f"must be {text}"


def _bounds(info: inspect.IntType | inspect.FloatType) -> str:
    if info.ge is not None and info.le is not None:
        return f" from {info.ge:,.12g} to {info.le:,.12g}"
    limits = (("above", info.gt), ("of at least", info.ge), ("below", info.lt), ("at most", info.le))
    return " and".join(f" {word} {limit:,.12g}" for word, limit in limits if limit is not None)


def _lengths(info: inspect.StrType | inspect.ListType | inspect.VarTupleType, unit: str) -> str:
    if info.min_length is None and info.max_length is None:
        return ""
    if info.min_length is None:
        return f" of at most {info.max_length:,} {unit}"
    return f" of {info.min_length:,} " + (f"to {info.max_length:,} " if info.max_length else "or more ") + unit
