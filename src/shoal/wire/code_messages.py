"""Messages about code that is shipped with jobs, and their limits."""

from typing import Annotated

from msgspec import Meta, Struct

MOST_CODE_BYTES = 100_000_000
"""Most bytes of shipped code, packed or unpacked."""

MOST_CODE_FILES = 20_000
MOST_PART_BYTES = 8 * 2**20
"""Bytes of an archive that one message carries."""


class CodePart(Struct, frozen=True):
    """A part of an archive of shipped code, base64: the bytes from ``offset`` on, of ``size`` in all."""

    offset: Annotated[int, Meta(ge=0, le=MOST_CODE_BYTES)]
    size: Annotated[int, Meta(ge=1, le=MOST_CODE_BYTES)]
    data: bytes


class CodeStatus(Struct, frozen=True):
    """How many bytes of an archive the control plane has; ``whole`` if none is missing."""

    have: int
    whole: bool
