"""Connection of one rank to Shoal: its lease, stop requests and progress reports.

A step costs a few assignments. A background thread of rank 0 reads the lease file and writes the progress file once a
second; training never waits for it, and an error there is logged once and does not stop training. In a process that
Shoal did not start, a session does nothing.

References: Narayanan et al., OSDI 2020 (Gavel), §6: leases; Zheng et al., NSDI 2023 (Shockwave), §7.
"""

import atexit
import gc
import json
import logging
import math
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn, SupportsFloat

from shoal.trainer import gate
from shoal.trainer.environment import RankEnvironment, read_rank_environment
from shoal.wire.files import replace_file

_LOG = logging.getLogger("shoal.trainer")

_REPORT_SECONDS = 1.0
_RATE_SECONDS = 10.0
"""Window of the reported rate, in seconds."""
_LAST_PART = 0.25
"""Last fraction of a lease in which a job whose lease was not renewed saves a checkpoint."""


class Stopped(SystemExit):
    """Raised in every rank after the same step when a stopped job has saved its state; the exit status is 0."""

    def __init__(self) -> None:
        super().__init__(0)


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a job as its rank 0 reports it.

    ``done``, ``saved`` and ``total`` (all work of the job) are in the script's own unit. ``batch_size`` is in samples
    over all ranks, ``learning_rate`` that of the last step, ``profile`` a ``GoodputReport`` as plain values,
    ``generation`` the worker order of the last step of an elastic job. A loop that reports ``saved`` saves its state
    when it is warned.
    """

    done: float
    total: float | None = None
    saved: float | None = None
    batch_size: int | None = None
    loss: SupportsFloat | None = None
    profile: Mapping[str, Any] | None = None
    generation: int | None = None
    learning_rate: float | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """End of the job's lease on the monotonic clock, in seconds, and whether the job was asked to stop."""

    until: float = math.inf
    stopping: bool = False


class Session:
    """Session of one rank. Open it before training; it closes with the process if the script does not close it."""

    def __init__(self, environment: RankEnvironment | None = None) -> None:
        self.environment = read_rank_environment() if environment is None else environment
        self._stop_requested = False
        self._lease = Lease()
        self._granted = 0.0
        self._secured = 0.0
        self._progress: Progress | None = None
        self._written: tuple[Progress, float | None] | None = None
        self._rate = _Rate()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._opened = False
        self._has_warned = False
        self._gate = False
        """Whether the job can be held at the gate when it is started again."""

    def open(self) -> None:
        """Start to watch for stop requests and to report; no effect if already open or not started by Shoal."""
        if self._opened or not self.environment.managed:
            return
        self._opened = True
        self._gate = gate.AVAILABLE and ("torch" in sys.modules or not gate.cuda_in_use())
        gate.wait()
        with suppress(ValueError):  # not the main thread: the lease file has the stop request too
            signal.signal(signal.SIGTERM, self._on_sigterm)
        if self.environment.rank == 0:
            self._read_lease()
            self._thread = threading.Thread(target=self._work, name="shoal-session", daemon=True)
            self._thread.start()
            atexit.register(self.close)

    def close(self) -> None:
        """Write the last report and end the background thread; waits 2 s at most."""
        if self._thread is not None:
            self._ending.set()
            self._thread.join(timeout=2.0)
            self._thread = None

    def report(self, progress: Progress) -> None:
        """Set the progress that the background thread writes next."""
        self._progress = progress

    @property
    def warned(self) -> bool:
        """Whether this rank has been asked to stop."""
        return self._stop_requested or self._lease.stopping

    @property
    def lapsing(self) -> bool:
        """Whether the lease is in its last part, was not renewed, and no checkpoint was saved since."""
        until, left = self._lease.until, self._lease.until - time.monotonic()
        return self._secured != until and left < _LAST_PART * (until - self._granted)

    def secured(self) -> None:
        """Record that a checkpoint of the present state was saved."""
        self._secured = self._lease.until

    def leave(self) -> NoReturn:
        """End this rank after a stop request by raising ``Stopped``."""
        self.close()
        # Without this the garbage collection of PyTorch's objects takes a second or more of the grace period.
        gc.freeze()
        raise Stopped

    def _on_sigterm(self, *_: object) -> None:
        self._stop_requested = True

    # ── in the background ─────────────────────────────────────────────────────────────────────────────────────────

    def _work(self) -> None:
        last = False
        while not last:
            last = self._ending.wait(_REPORT_SECONDS)
            try:
                self._read_lease()
                self._write()
            except Exception as error:  # no error here may stop training
                self._warn_once(error)

    def _read_lease(self) -> None:
        try:
            text = self.environment.lease.read_bytes() if self.environment.lease else b""
            stored = json.loads(text)
            lease = Lease(float(stored["until"]), bool(stored["stopping"]))
        except (OSError, ValueError, TypeError, KeyError):
            return
        if lease.until != self._lease.until:
            self._granted = time.monotonic()
        self._lease = lease

    def _write(self) -> None:
        progress, path = self._progress, self.environment.progress
        if progress is None or path is None:
            return
        rate = self._rate.at(time.monotonic(), progress)
        if (progress, rate) == self._written:
            return
        unit = self._unit(progress)
        text = f"{unit * progress.done!r}"
        if progress.saved is not None:
            text += f" {unit * progress.saved!r}"
        if self.environment.lease is not None:  # an agent that writes leases also reads the report line
            text += "\n" + json.dumps(_report(progress, None if rate is None else unit * rate, self._gate))
        try:
            replace_file(path, f"{text}\n".encode())
        except OSError as error:
            self._warn_once(error)
        else:
            self._written = progress, rate

    def _unit(self, progress: Progress) -> float:
        """Factor from the script's unit to the unit of the job's declared work; 1 where either is unknown."""
        return 1.0 if self.environment.work is None or not progress.total else self.environment.work / progress.total

    def _warn_once(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning("training continues, but progress cannot be reported to Shoal: %r", error)


def _report(progress: Progress, rate: float | None, at_gate: bool) -> dict[str, Any]:
    loss, learning_rate = (
        math.nan if each is None else float(each) for each in (progress.loss, progress.learning_rate)
    )
    found = {
        "rate": rate,
        "batch_size": progress.batch_size,
        "loss": loss if math.isfinite(loss) else None,
        "learning_rate": learning_rate if math.isfinite(learning_rate) else None,
        "profile": progress.profile,
        "generation": progress.generation,
        "saves": True if progress.saved is not None else None,
        "gate": at_gate or None,
        "links": _tracker_links() or None,
    }
    return {name: value for name, value in found.items() if value is not None}


def _tracker_links() -> list[str]:
    """Return the address of the run that Weights & Biases has open in this process, if the script uses it."""
    url = getattr(getattr(sys.modules.get("wandb"), "run", None), "url", None)
    return [url] if isinstance(url, str) else []


class _Rate:
    """Rate over the last seconds at the present batch size."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, float]] = []
        self._batch: int | None = None
        self._last: float | None = None

    def at(self, now: float, progress: Progress) -> float | None:
        """Progress per second in the script's unit; None until half a second was measured."""
        if progress.batch_size != self._batch:
            # Progress so far was partly made at the old batch size, so the window starts here.
            self._seen, self._batch, self._last = [], progress.batch_size, None
        if not self._seen or progress.done > self._seen[-1][1]:
            self._seen.append((now, progress.done))
            while len(self._seen) > 2 and now - self._seen[1][0] > _RATE_SECONDS:
                del self._seen[0]
            (began, before), (ended, after) = self._seen[0], self._seen[-1]
            if ended - began >= _REPORT_SECONDS / 2:
                self._last = (after - before) / (ended - began)
        return self._last
