"""Specifications written as ``name:key=value,…``: of policies, searchers, cloud terms and fault rates."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeVar

from shoal.core.errors import InputError, nearest

Made = TypeVar("Made")

_FLAGS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def split_name(what: str, spec: str, names: Collection[str]) -> tuple[str, str]:
    """Return the name in a specification and the text of its options; ``what`` is its noun in errors: ``policy``."""
    name, _, options = spec.partition(":")
    if name not in names:
        raise InputError(what, name, nearest(name, names))
    return name, options


def split_options(owner: str, text: str, names: Collection[str]) -> dict[str, str]:
    """Return the values in ``key=value,…`` by key; refuse a key that is unknown, repeated or without a value.

    ``names`` are the known keys. ``owner`` names in errors whose options they are, e.g. ``policy fifo``.
    """
    given: dict[str, str] = {}
    for pair in filter(None, text.split(",")):
        key, equals, value = pair.partition("=")
        if key not in names:
            hint = nearest(key, names) if names else f"{owner.rpartition(' ')[2]} takes no options"
            raise InputError(f"{owner}, option", key, hint)
        if not equals:
            raise InputError(f"{owner}, option {key}", pair, "write key=value")
        if key in given:
            raise InputError(f"{owner}, option {key}", value, "is given twice")
        given[key] = value
    return given


def read_options(owner: str, text: str, types: Mapping[str, type]) -> dict[str, Any]:
    """Return the options in ``key=value,…``, each converted to its type; the numbers of a tuple are separated by /."""
    return {
        key: _convert(f"{owner}, option {key}", value, types[key])
        for key, value in split_options(owner, text, types).items()
    }


def make(owner: str, factory: Callable[..., Made], text: str, types: Mapping[str, type]) -> Made:
    """Call the factory with the options in ``key=value,…``; its ValueError becomes an `InputError`."""
    options = read_options(owner, text, types)
    try:
        return factory(**options)
    except ValueError as error:
        raise InputError(owner, text, str(error)) from error


def _convert(field: str, text: str, kind: type) -> object:
    if kind is bool:
        if text.lower() not in _FLAGS:
            raise InputError(field, text, "must be true or false")
        return _FLAGS[text.lower()]
    try:
        if kind in (int, float, str):
            return kind(text)
        return tuple(float(part) for part in text.split("/"))
    except ValueError:
        wanted = {int: "a whole number", float: "a number"}.get(kind, "numbers separated by /")
        raise InputError(field, text, f"must be {wanted}") from None
