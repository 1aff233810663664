"""A rank's conversation with Shoal: how long it may go on, and what it tells of its training.

A step costs it a few assignments. Everything else happens in a background thread of rank 0, which nothing waits for and
which outlives every error: where files cannot be read or written, training goes on and nobody hears of it. Without
Shoal a session does nothing at all.

References: Narayanan et al., OSDI 2020 (Gavel), §6: leases; Zheng et al., NSDI 2023 (Shockwave), §7.
"""

import atexit
import gc
import json
import logging
import math
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, SupportsFloat

from shoal.trainer.rank_environment import Place, read_place
from shoal.wire.files import replace_file

_LOG = logging.getLogger("shoal.trainer")

_REPORT_SECONDS = 1.0
_RATE_SECONDS = 10.0
"""A speed is that of about so many last seconds."""
_LAST_PART = 0.25
"""A lease that was not prolonged by its last quarter may not be any more: what was done is saved, in case."""


class Stopped(SystemExit):
    """Raised in every rank at the same step, once all is saved, when the job is to leave; ends the process well."""

    def __init__(self) -> None:
        super().__init__(0)


@dataclass(frozen=True, slots=True)
class Telling:
    """What a rank tells of its training. ``done`` and ``saved`` count in the script's own unit, and so does ``total``,
    all there is to do; ``batch_size`` is over all ranks; ``profile`` is a ``GoodputReport`` as plain values;
    ``generation`` is the order of workers the last step was trained by, where they come and go."""

    done: float
    total: float | None = None
    saved: float | None = None
    batch_size: int | None = None
    loss: SupportsFloat | None = None
    profile: Mapping[str, Any] | None = None
    generation: int | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """Until when a job may go on, on the monotonic clock, and whether it has been told to leave."""

    until: float = math.inf
    stopping: bool = False


class Session:
    """One rank's; to be opened before training and closed after it, which also happens by itself at the end."""

    def __init__(self, place: Place | None = None) -> None:
        self.place = read_place() if place is None else place
        self._warned = False
        self._lease = Lease()
        self._granted = 0.0
        self._secured = 0.0
        self._said: Telling | None = None
        self._written: tuple[Telling, float | None] | None = None
        self._rate = _Rate()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._opened = False
        self._quiet = False

    def open(self) -> None:
        """Begin to heed warnings and to report; does nothing when it is open, or without Shoal."""
        if self._opened or not self.place.managed:
            return
        self._opened = True
        with suppress(ValueError):  # not the main thread: the lease tells of the warning as well
            signal.signal(signal.SIGTERM, self._heed)
        if self.place.rank == 0:
            self._look()
            self._thread = threading.Thread(target=self._work, name="shoal-session", daemon=True)
            self._thread.start()
            atexit.register(self.close)

    def close(self) -> None:
        """Tell the last of it; waits no longer than writing a small file takes."""
        if self._thread is not None:
            self._ending.set()
            self._thread.join(timeout=2.0)
            self._thread = None

    def tell(self, telling: Telling) -> None:
        """From now on this is what is told."""
        self._said = telling

    @property
    def warned(self) -> bool:
        """Whether this rank knows that the job is to leave."""
        return self._warned or self._lease.stopping

    @property
    def lapsing(self) -> bool:
        """Whether the lease is in its last part, nothing was heard of a new one, and nothing was saved for that."""
        until, left = self._lease.until, self._lease.until - time.monotonic()
        return self._secured != until and left < _LAST_PART * (until - self._granted)

    def secured(self) -> None:
        """What was done by now is saved."""
        self._secured = self._lease.until

    def leave(self) -> NoReturn:
        """End this rank, as one that was told to stop."""
        self.close()
        # Clearing away an interpreter full of PyTorch takes a second or more, for which there may be no time.
        gc.freeze()
        raise Stopped

    def _heed(self, *_: object) -> None:
        self._warned = True

    # ── in the background ─────────────────────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        last = False
        while not last:
            last = self._ending.wait(_REPORT_SECONDS)
            try:
                self._look()
                self._write()
            except Exception as error:  # whatever it is, training must not suffer for it
                self._complain(error)

    def _look(self) -> None:
        """Read the lease, if there is one to read."""
        try:
            text = self.place.lease.read_bytes() if self.place.lease else b""
            said = json.loads(text)
            lease = Lease(float(said["until"]), bool(said["stopping"]))
        except (OSError, ValueError, TypeError, KeyError):
            return
        if lease.until != self._lease.until:
            self._granted = time.monotonic()
        self._lease = lease

    def _write(self) -> None:
        said, path = self._said, self.place.progress
        if said is None or path is None:
            return
        rate = self._rate.at(time.monotonic(), said)
        if (said, rate) == self._written:
            return
        unit = self._unit(said)
        text = f"{unit * said.done!r}"
        if said.saved is not None:
            text += f" {unit * said.saved!r}"
        if self.place.lease is not None:  # an agent that gives leases also reads reports
            text += "\n" + json.dumps(_report(said, None if rate is None else unit * rate))
        try:
            replace_file(path, f"{text}\n".encode())
        except OSError as error:
            self._complain(error)
        else:
            self._written = said, rate

    def _unit(self, said: Telling) -> float:
        """What the script's unit is in that of the job's declared work; 1 where either is not known."""
        return 1.0 if self.place.work is None or not said.total else self.place.work / said.total

    def _complain(self, error: Exception) -> None:
        if not self._quiet:
            self._quiet = True
            _LOG.warning("training goes on, but Shoal does not hear of it: %r", error)


def _report(said: Telling, rate: float | None) -> dict[str, Any]:
    loss = math.nan if said.loss is None else float(said.loss)
    found = {
        "rate": rate,
        "batch_size": said.batch_size,
        "loss": loss if math.isfinite(loss) else None,
        "profile": said.profile,
        "generation": said.generation,
    }
    return {name: value for name, value in found.items() if value is not None}


class _Rate:
    """How fast the job goes with the batch size it has now: over the last seconds, and from when that began."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []
        self._batch: int | None = None
        self._last: float | None = None

    def at(self, now: float, said: Telling) -> float | None:
        """Progress per second, in the script's unit; None until it can be told."""
        if said.batch_size != self._batch:
            # What is done by now was partly done with the old batch size: it is where the new count begins.
            self._seen, self._batch, self._last = [], said.batch_size, None
        if not self._seen or said.done > self._seen[-1][1]:
            self._seen.append((now, said.done))
            while len(self._seen) > 2 and now - self._seen[1][0] > _RATE_SECONDS:
                del self._seen[0]
            (began, before), (ended, after) = self._seen[0], self._seen[-1]
            if ended - began >= _REPORT_SECONDS / 2:
                self._last = (after - before) / (ended - began)
        return self._last
