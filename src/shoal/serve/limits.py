"""How much one may ask for at once: bytes in a body, requests in a second, listeners at a time."""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request

from shoal.serve.errors import RequestError
from shoal.wire.messages import ProblemDetails

_MOST_BUCKETS = 10_000
"""Callers remembered at a time; whoever has been silent longest is forgotten first, and starts afresh."""


_ROUNDING = 1e-9
"""Who waits just as long as it was told to must not be turned away for the last bit of a difference of times."""


@dataclass(frozen=True, slots=True)
class Rate:
    """So many requests a second in the long run, and so many at once after a rest."""

    per_second: float
    burst: float


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The bounds of one server."""

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
    """One token bucket per caller, filled at a rate."""

    def __init__(self, rate: Rate, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._clock = clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, caller: str) -> None:
        """Count one request of this caller, or refuse it with the time after which to come back."""
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
    """A refusal for now: the caller may come back after so many seconds."""
    wait = max(1, math.ceil(seconds))
    problem = ProblemDetails(error, hint=f"come back in {wait} s")
    return RequestError(429, problem, {"Retry-After": str(wait)})


async def read_body(request: Request, most: int, seconds: float) -> bytes:
    """A request's body, refused as soon as it is known to be longer than ``most`` bytes or takes too long to come."""
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
        raise RequestError(408, ProblemDetails(f"the body did not come within {seconds:g} s")) from error
    return b"".join(parts)


def _too_large(size: int, most: int) -> RequestError:
    return RequestError(
        413, ProblemDetails("the body is too large", "body", size, f"send at most {most} bytes at a time")
    )
