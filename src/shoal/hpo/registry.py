"""Searchers by name, from ``name:key=value,…``; errors on unknown names and keys suggest the nearest."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import get_type_hints

from shoal.core.spec_text import make, split_name
from shoal.hpo.curve_stopping import CurveStopping, SingleJob
from shoal.hpo.halving import Hyperband, SuccessiveHalving
from shoal.hpo.search import Searcher

SEARCHERS: Mapping[str, Callable[..., Searcher]] = MappingProxyType(
    {"halving": SuccessiveHalving, "hyperband": Hyperband, "curve": CurveStopping, "single": SingleJob}
)
"""The searchers that a workload or search file can name."""


def parse_search(spec: str) -> Searcher:
    """A searcher from its specification, e.g. ``halving:eta=3``."""
    name, options = split_name("search", spec, SEARCHERS)
    types = {key: hint for key, hint in get_type_hints(SEARCHERS[name]).items() if hint in (int, float)}
    return make(f"search {name}", SEARCHERS[name], options, types)
