"""Searchers by name, from ``name:key=value,…``; errors on unknown names and keys suggest the nearest."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, get_type_hints

from shoal.core.errors import InputError, nearest
from shoal.hpo.curve_stopping import CurveStopping, SingleJob
from shoal.hpo.halving import Hyperband, SuccessiveHalving
from shoal.hpo.search import Searcher

SEARCHERS: Mapping[str, Callable[..., Searcher]] = MappingProxyType(
    {"halving": SuccessiveHalving, "hyperband": Hyperband, "curve": CurveStopping, "single": SingleJob}
)
"""The searchers that a workload or search file can name."""


def parse_search(spec: str) -> Searcher:
    """Return the searcher of a specification, e.g. ``halving:eta=3``."""
    name, _, rest = spec.partition(":")
    if name not in SEARCHERS:
        raise InputError("search", name, nearest(name, SEARCHERS))
    kinds = {key: hint for key, hint in get_type_hints(SEARCHERS[name]).items() if hint in (int, float)}
    chosen = read_options(name, rest, kinds)
    try:
        return SEARCHERS[name](**chosen)
    except ValueError as error:
        raise InputError(f"search {name}", rest, str(error)) from error


def read_options(name: str, text: str, kinds: Mapping[str, type]) -> dict[str, Any]:
    """Parse the options ``key=value,…`` of a searcher whose options have these types."""
    chosen: dict[str, Any] = {}
    for pair in filter(None, text.split(",")):
        key, _, value = pair.partition("=")
        if key not in kinds:
            hint = nearest(key, kinds) if kinds else f"{name} takes no options"
            raise InputError(f"search {name}, option", key, hint)
        try:
            chosen[key] = kinds[key](value)
        except ValueError:
            wanted = "a whole number" if kinds[key] is int else "a number"
            raise InputError(f"search {name}, option {key}", value, f"must be {wanted}") from None
    return chosen
