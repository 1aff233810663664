"""Readers of the public trace formats, one module each; ``FORMATS`` has them by name.

A reader converts a file to jobs of Shoal's schema. Rows it cannot convert are errors that name file and line; it never
fills in a number that the file does not have.
"""

from collections.abc import Mapping
from types import MappingProxyType

from shoal.workload.importers import alibaba, gavel, helios, philly, pollux, sacct, shoal, shockwave, simple
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
"""All readable formats, by name."""
