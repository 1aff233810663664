"""Limits of the server: bytes in a body, requests per second, listeners at a time."""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request

from shoal.serve.errors import RequestError

_MOST_BUCKETS = 10_000
"""Most callers remembered; the one silent longest is forgotten first, and would start with a full bucket."""

_ROUNDING = 1e-9
"""Tolerance, in requests: waiting for exactly ``Retry-After`` must not be refused for a rounding error."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Sustained requests per second, and how many may come at once after a pause."""

    per_second: float
    burst: float


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of one server; ``known`` applies per token, ``unknown`` per address without a valid token."""

    body_bytes: int = 2**20
    large_body_bytes: int = 16 * 2**20
    body_seconds: float = 30.0
    known: Rate = Rate(1000.0, 2000.0)
    unknown: Rate = Rate(20.0, 50.0)
    listeners: int = 256
    questions: int = 2
    question_seconds: float = 300.0
    longest_wait: float = 60.0
    log_seconds: float = 10.0
    durable_seconds: float = 30.0


class Buckets:
    """One token bucket per caller, refilled at a rate."""

    def __init__(self, rate: Rate, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> None:
        """Count one request of this caller, or refuse it (429) with the seconds after which to retry."""
        now = self._clock()
        level, at = self._levels.pop(caller, (self._rate.burst, now))
        level = min(self._rate.burst, level + (now - at) * self._rate.per_second)
        allowed = level >= 1.0 - _ROUNDING
        self._levels[caller] = (level - 1.0 if allowed else level, now)
        if len(self._levels) > _MOST_BUCKETS:
            self._levels.popitem(last=False)
        if not allowed:
            raise too_many("too many requests", (1.0 - level) / self._rate.per_second)


def too_many(error: str, seconds: float) -> RequestError:
    """429 with ``Retry-After``: the caller may retry after this many seconds, rounded up."""
    wait = max(1, math.ceil(seconds))
    return RequestError(429, error, hint=f"come back in {wait} s", headers={"Retry-After": str(wait)})


async def read_body(request: Request, most: int, seconds: float) -> bytes:
    """Read a request's body; 413 as soon as it exceeds ``most`` bytes, 408 when it takes longer than ``seconds``."""
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared[:20]) > most:
        raise _too_large(int(declared[:20]), most)
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise _too_large(size, most)
                parts.append(part)
    except TimeoutError as error:
        raise RequestError(408, f"the body did not come within {seconds:g} s") from error
    return b"".join(parts)


def _too_large(size: int, most: int) -> RequestError:
    return RequestError(413, "the body is too large", "body", size, f"send at most {most} bytes at a time")
