"""Readers of the public trace formats, one module each.

``FORMATS`` is the registry, by name. A reader turns a file into jobs of the one schema and says, with file and line,
what it could not understand; it never guesses a number that is not there.
"""

from collections.abc import Mapping
from types import MappingProxyType

from shoal.workload.importers import (
    alibaba,
    gavel,
    helios,
    philly,
    pollux,
    sacct,
    shoal,
    shockwave,
    simple,
)
from shoal.workload.importers.rows import Format

_ALL = (
    shoal.FORMAT,
    simple.FORMAT,
    gavel.FORMAT,
    shockwave.FORMAT,
    pollux.FORMAT,
    pollux.SIA,
    philly.FORMAT,
    helios.FORMAT,
    alibaba.FORMAT,
    sacct.FORMAT,
)

FORMATS: Mapping[str, Format] = MappingProxyType({form.name: form for form in _ALL})
"""Every format that can be read, by name."""
