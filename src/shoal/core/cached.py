"""A cached property without a lock: ``functools.cached_property`` of Python 3.11 acquires one at each first reading."""

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

_T = TypeVar("_T")


class cached(Generic[_T]):  # noqa: N801 (a decorator)
    """A property that is computed when it is first read and kept in the instance's dictionary."""

    def __init__(self, compute: Callable[[Any], _T]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> "cached[_T]": ...

    @overload
    def __get__(self, instance: object, owner: type | None = None) -> _T: ...

    def __get__(self, instance: object | None, owner: type | None = None) -> "_T | cached[_T]":
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
