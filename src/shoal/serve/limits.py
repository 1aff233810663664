"""Limits of the server: bytes in a body, requests per second, listeners and expensive requests at a time."""

import asyncio
import math
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field

from starlette.requests import Request

from shoal.serve.errors import RequestError

_MOST_BUCKETS = 10_000
"""Most callers remembered; the one silent longest is forgotten first, and would start with a full bucket."""

_ROUNDING = 1e-9
"""Tolerance, in requests: waiting for exactly ``Retry-After`` must not be refused for a rounding error."""


_CROWD, _CROWD_SECONDS = 4, 0.1
"""Open requests of one caller for one route beyond which its answers are spaced, and seconds between two of them."""


@dataclass(frozen=True, slots=True)
class Rate:
    """Sustained requests per second, and how many may come at once after a pause."""

    per_second: float
    burst: float


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of one server; ``known`` applies per token, ``unknown`` per address without a valid token.

    A request's head must arrive within ``head_seconds`` of the connection or of the answer before, its body within
    ``body_seconds``. An address may have ``strangers`` connections that have shown no valid token, and ``callers`` that
    have shown a user's or an admin's. An agent may have ``agent_connections``, from any address. ``waiting`` requests
    of a tenant may wait for their turn.
    """

    body_bytes: int = 2**20
    large_body_bytes: int = 16 * 2**20
    head_seconds: float = 10.0
    body_seconds: float = 30.0
    strangers: int = 64
    callers: int = 256
    agent_connections: int = 48
    waiting: int = 64
    known: Rate = Rate(1000.0, 2000.0)
    unknown: Rate = Rate(20.0, 50.0)
    listeners: int = 256
    listeners_each: int = 16
    questions: int = 2
    questions_each: int = 1
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


class Places:
    """Counts open requests or streams of callers: at most ``most`` in all and ``most_each`` of one caller."""

    def __init__(self, what: str, most: int, most_each: int) -> None:
        self._what, self._most, self._most_each = what, most, most_each
        self._held: Counter[str] = Counter()
        self._lock = threading.Lock()

    def begin(self, caller: str) -> Callable[[], None]:
        """Count one more of this caller, or refuse it (429); the function returned counts it as ended, once."""
        with self._lock:
            if self._held[caller] >= self._most_each or self._held.total() >= self._most:
                raise too_many(f"too many {self._what} at a time", 5.0)
            self._held[caller] += 1
        open_ones = [caller]

        def end() -> None:
            with self._lock:
                for holder in open_ones:
                    self._held[holder] -= 1
                open_ones.clear()
                self._held += Counter()  # forgets callers without any

        return end


@dataclass(slots=True)
class _Turn:
    """The open requests of one caller for one route, counted by question, and the answers to these questions.

    Each answer is kept with the time at which it was begun, until the last request for it ends. ``begun`` is the latest
    of these times.
    """

    free: asyncio.Semaphore
    asking: Counter[Hashable] = field(default_factory=Counter)
    answers: dict[Hashable, tuple[float, bytes]] = field(default_factory=dict)
    begun: float = -math.inf


class Turns:
    """Lets a few requests of one caller run at a time; the others wait for their turn, and too many are refused."""

    def __init__(self, most_waiting: int) -> None:
        self._most_waiting = most_waiting
        self._turns: dict[Hashable, _Turn] = {}

    async def answer(
        self, caller: Hashable, at_once: int, question: Hashable, find: Callable[[], Awaitable[bytes]]
    ) -> bytes:
        """Return the answer that ``find`` gives when it is the caller's turn.

        A request that waited takes the answer to the same question that was begun while it waited. For a caller with
        more than ``_CROWD`` requests an answer begins ``_CROWD_SECONDS`` after the last one began, so that more
        requests share it and the server has time for other callers.
        """
        loop = asyncio.get_running_loop()
        asked = loop.time()
        turn = self._turns.setdefault(caller, _Turn(asyncio.Semaphore(at_once)))
        if turn.asking.total() >= at_once + self._most_waiting:
            raise too_many("too many requests at a time", 1.0)
        turn.asking[question] += 1
        try:
            async with turn.free:
                begun, answer = turn.answers.get(question, (-math.inf, b""))
                if begun < asked:
                    if turn.asking.total() > _CROWD:
                        await asyncio.sleep(turn.begun + _CROWD_SECONDS - loop.time())
                    turn.begun = begun = loop.time()
                    answer = await find()
                    turn.answers[question] = begun, answer
                return answer
        finally:
            turn.asking[question] -= 1
            if not turn.asking[question]:
                del turn.asking[question]
                turn.answers.pop(question, None)
            if not turn.asking:
                self._turns.pop(caller, None)


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
