"""Amounts of memory in text: ``16G``, in powers of 1,024 as Slurm counts."""

import re

from shoal.core.errors import InputError

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([KMGT]?)(?:i?B)?", re.IGNORECASE)


def read_size(field: str, text: str) -> int:
    """Return the bytes that a text such as ``16G`` or ``500M`` stands for."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise InputError(field, text, "must be bytes, or a number with K, M, G or T: 16G")
    return int(float(found[1]) * _UNITS[found[2].upper()])


def show_size(size: int) -> str:
    """Return bytes in words, in the largest unit of which there is one: ``16 GB``."""
    name, unit = next(((n, u) for n, u in reversed(_UNITS.items()) if size >= u and n), ("", 1))
    return f"{size / unit:.4g} {name}B" if name else f"{size} bytes"
