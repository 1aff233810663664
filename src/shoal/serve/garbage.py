"""Short pauses for garbage collection in a process whose objects live long.

Python's full collection looks at every object: with 5,000 agents and 20,000 jobs half a second, every few seconds while
jobs come and end, and no thread runs meanwhile.
"""

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

_COMPLETE_SECONDS = 300.0
"""Time between collections that look at all objects: only these find garbage among those that have survived one."""


@contextmanager
def short_collections(clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Let full collections look only at objects made since the last one, and every 5 min at all of them."""
    complete = clock() + _COMPLETE_SECONDS

    def around(phase: str, info: Mapping[str, Any]) -> None:
        nonlocal complete
        if info["generation"] < 2:
            return
        if phase == "stop":
            gc.freeze()  # what is left is in use
        elif clock() >= complete:
            complete = clock() + _COMPLETE_SECONDS
            gc.unfreeze()

    gc.callbacks.append(around)
    try:
        yield
    finally:
        gc.callbacks.remove(around)
        gc.unfreeze()


@contextmanager
def no_collections() -> Iterator[None]:
    """Collect no garbage until left: for work that makes many objects which stay."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
