"""Benchmark of listings: one user lists a long queue many times at once while others submit and list jobs.

Waits are wall-clock seconds and depend on other load on the machine. The CPU time for which a listing holds the lock
of its control plane is measured in one of this process.
"""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import TracebackType

from shoal.core.topology import parse_cluster
from shoal.live.control_plane import ControlPlane
from shoal.live.home import Settings, open_control_plane
from shoal.live.job_lists import JobFilter
from shoal.research.bench.live import BenchCluster, cpu_seconds
from shoal.scenario.scenario import Scenario
from shoal.wire.client import Client
from shoal.wire.messages import JobRow, NewToken, Submission, SubmissionBatch, Submitted, TokenRow

_LISTERS = 24
_SUBMISSIONS = 20
_PAGE = JobFilter(limit=100)


def lists(queued: int) -> dict[str, float]:
    """Measure another user's submissions and `shoal queue` while 24 listings of ``queued`` jobs run at a time.

    ``seconds`` is the median time of a submission.
    """
    figures = _under_lock(queued)
    with TemporaryDirectory(prefix="shoal-bench-") as folder:
        cluster = BenchCluster(Path(folder), (1, 4), ("--policy", "fifo"))
        cluster.start_control_plane()
        stop = threading.Event()
        try:
            ana, bo = (_user(cluster, name) for name in ("ana", "bo"))
            for _ in range(queued // 1000):
                ana.post("/v1/jobs/batch", SubmissionBatch([_job() for _ in range(1000)]), Submitted)
            alone = [_timed(lambda: bo.post("/v1/jobs", _job(), Submitted)) for _ in range(_SUBMISSIONS)]
            queue_alone = _timed(lambda: _queue(folder))
            listed = [0] * _LISTERS
            before = cpu_seconds(cluster.control_plane.pid)
            threads = [threading.Thread(target=_list, args=(ana, stop, listed, n)) for n in range(_LISTERS)]
            for thread in threads:
                thread.start()
            waits = [_timed(lambda: bo.post("/v1/jobs", _job(), Submitted)) for _ in range(_SUBMISSIONS)]
            queue = _timed(lambda: _queue(folder))
            stop.set()
            for thread in threads:
                thread.join()
            spent = cpu_seconds(cluster.control_plane.pid) - before
        finally:
            stop.set()
            cluster.end()
    figures |= {"seconds": median(waits), "slowest_submission_s": max(waits), "queue_s": queue}
    figures |= {"submission_alone_s": median(alone), "queue_alone_s": queue_alone}
    return figures | {"listings": float(sum(listed)), "cpu_ms_per_listing": 1000 * spent / max(1, sum(listed))}


def _user(cluster: BenchCluster, name: str) -> Client:
    secret = cluster.client.post("/v1/tokens", NewToken(name, "user", name), TokenRow).secret
    assert secret is not None
    return Client(cluster.client.url, secret)


def _list(client: Client, stop: threading.Event, listed: list[int], number: int) -> None:
    while not stop.is_set():
        client.get("/v1/jobs", list[JobRow])
        listed[number] += 1


def _queue(home: str) -> None:
    env = {**os.environ, "SHOAL_HOME": home}
    subprocess.run([sys.executable, "-m", "shoal", "queue"], check=True, stdout=subprocess.DEVNULL, env=env)


def _timed(call: Callable[[], object]) -> float:
    begin = time.monotonic()
    call()
    return time.monotonic() - begin


def _job() -> Submission:
    return Submission(command=["/bin/true"], gpus=4, ranks="node")


class _MeasuredLock:
    """A lock that adds up the CPU seconds for which this thread holds it."""

    def __init__(self, inner: threading.RLock) -> None:
        self.inner, self.held, self._depth, self._began = inner, 0.0, 0, 0.0

    def __enter__(self) -> bool:
        self.inner.acquire()
        self._depth += 1
        if self._depth == 1:
            self._began = time.thread_time()
        return True

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._depth -= 1
        if not self._depth:
            self.held += time.thread_time() - self._began
        self.inner.release()


def _under_lock(queued: int) -> dict[str, float]:
    """Return the CPU milliseconds for which a listing, the first and a later one, holds the lock, and takes in all."""
    with ExitStack() as opened:
        home = Path(opened.enter_context(TemporaryDirectory(prefix="shoal-bench-")))
        settings = Settings(home, Scenario(parse_cluster("gpu:1x4"), "fifo"))
        plane = opened.enter_context(open_control_plane(settings))
        for _ in range(queued // 1000):
            plane.submit([_job() for _ in range(1000)], "ana").result(60.0)
        first, all_first = _listing(plane)
        later, all_later = _listing(plane)
    return {
        "lock_ms_first_listing": 1000 * first,
        "lock_ms_listing": 1000 * later,
        "cpu_ms_first_listing": 1000 * all_first,
        "cpu_ms_listing_alone": 1000 * all_later,
    }


def _listing(plane: ControlPlane) -> tuple[float, float]:
    lock = _MeasuredLock(plane._lists.accounts_lock)
    plane._lists.accounts_lock = lock  # type: ignore[assignment]
    try:
        begin = time.thread_time()
        plane.jobs("ana", only=_PAGE)
        return lock.held, time.thread_time() - begin
    finally:
        plane._lists.accounts_lock = lock.inner
