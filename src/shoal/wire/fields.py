"""Field types of the messages: bounds, and hints for errors that the bounds alone do not explain."""

from typing import Annotated, Literal, TypeAlias

from msgspec import Meta

from shoal.core.decoding import hint

_NAME_HINT = "must be letters, digits, `_`, `.` or `-`, beginning with a letter or digit, at most {} characters"

Count: TypeAlias = Annotated[int, Meta(ge=1, le=100_000)]
Quantity: TypeAlias = Annotated[int, Meta(ge=0, le=1_000_000)]
Natural: TypeAlias = Annotated[int, Meta(ge=0, le=2**53)]
Work: TypeAlias = Annotated[
    float, Meta(gt=0, le=1e15, extra=hint("must be a number above 0, at most 1e15 samples or seconds"))
]
Span: TypeAlias = Annotated[
    float, Meta(gt=0, le=1e10, extra=hint("must be seconds from now above 0, at most 1e10 (300 years)"))
]
Weight: TypeAlias = Annotated[float, Meta(ge=1e-6, le=1e6, extra=hint("must be a number from 1e-6 to 1e6"))]
Priority: TypeAlias = Annotated[
    int, Meta(ge=-1_000_000, le=1_000_000, extra=hint("must be a whole number from -1,000,000 to 1,000,000"))
]
Text: TypeAlias = Annotated[
    str, Meta(pattern=r"^[^\x00]*\Z", max_length=4096, extra=hint("must be at most 4,096 characters, none of them NUL"))
]
Name: TypeAlias = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,63}\Z", max_length=64, extra=hint(_NAME_HINT.format(64))),
]
JobName: TypeAlias = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.\-]{0,79}\Z", max_length=80, extra=hint(_NAME_HINT.format(80))),
]
AllocationName: TypeAlias = Annotated[
    str, Meta(pattern=r"^([A-Za-z0-9][A-Za-z0-9_.\-]*)?\Z", max_length=160, extra=hint(_NAME_HINT.format(160)))
]
"""The name of an allocation for one run, or empty."""
Memory: TypeAlias = Annotated[
    int, Meta(ge=2**20, le=2**50, extra=hint("must be bytes, from 1 MB to 1,024 TB, or a number with M, G or T: 16G"))
]
Digest: TypeAlias = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
"""The SHA-256 of an archive."""

Variable: TypeAlias = Annotated[
    str,
    Meta(
        pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z",
        max_length=256,
        extra=hint("is no name of a variable: letters, digits and `_`, not beginning with a digit"),
    ),
]
Command: TypeAlias = Annotated[
    list[Text],
    Meta(
        min_length=1,
        max_length=1024,
        extra=hint(
            "must be a list of words, as no shell reads it: [python, train.py], or [bash, -c, 'cd src && make']"
        ),
    ),
]
Host: TypeAlias = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9_.:%\-]*\Z", max_length=255, extra=hint("must be a host name or an IP address")),
]
Boot: TypeAlias = Annotated[str, Meta(max_length=64)]

Role: TypeAlias = Literal["admin", "user", "agent", "join"]
Ranks: TypeAlias = Annotated[
    Literal["gpu", "node"],
    Meta(extra=hint("must be gpu (run the command once for each GPU) or node (once for each node)")),
]
Resizes: TypeAlias = Annotated[
    Literal["restart", "in_place"],
    Meta(
        extra=hint("must be restart (stop it and start it again) or in_place (workers come and go while others train)")
    ),
]
