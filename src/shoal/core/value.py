"""The base of small frozen values that the ring makes by the thousand.

A frozen dataclass sets each field by a function call; a ``msgspec.Struct`` is made ten times as fast.
"""

from dataclasses import MISSING, Field, field, make_dataclass
from functools import cache
from typing import Any, ClassVar, cast

import msgspec
from msgspec.structs import fields

__all__ = ["Value"]


@cache
def _as_dataclass(owner: type[msgspec.Struct]) -> dict[str, Field[Any]]:
    """Return ``dataclasses.Field`` objects that describe the fields of a struct."""
    parts = []
    for f in fields(owner):
        default = MISSING if f.default is msgspec.NODEFAULT else f.default
        factory: Any = MISSING if f.default_factory is msgspec.NODEFAULT else f.default_factory
        parts.append((f.name, f.type, field(default=default) if factory is MISSING else field(default_factory=factory)))
    twin: Any = make_dataclass(owner.__name__, parts, init=False, repr=False, eq=False)
    return cast(dict[str, Field[Any]], twin.__dataclass_fields__)


class _DataclassFields:
    """The fields by which ``dataclasses.replace``, ``fields`` and ``asdict`` accept a struct; made when first read."""

    def __get__(self, instance: object, owner: type[msgspec.Struct]) -> dict[str, Field[Any]]:
        return _as_dataclass(owner)


class Value(msgspec.Struct, frozen=True, gc=False):
    """A frozen value, with all that a frozen dataclass offers; subclasses repeat ``frozen=True`` for type checkers.

    The garbage collector does not visit values, and so skips most objects of the ring: a value is made of older objects
    and cannot be part of a reference cycle. A value with objects of a user's policy can be, and has ``gc=True``.
    """

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]] = _DataclassFields()  # type: ignore[assignment]
