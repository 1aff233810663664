"""Notices of the ends of jobs, sent by HTTP or mail to the addresses they name, in threads of their own.

A notice is sent at most five times and dropped after that, and so are new ones while too many wait: nothing here can
slow down the control plane. There is no notice of an end that the control plane finds in its journal when it starts.
"""

import heapq
import json
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.message import EmailMessage
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from smtplib import SMTP, SMTPException
from typing import Any

from shoal.core.printable import printable
from shoal.core.units import span
from shoal.live.accounts import Account, Accounts
from shoal.live.notice_targets import mail_address, web_address

log = logging.getLogger(__name__)

_PAUSES = (2.0, 10.0, 60.0, 300.0)
"""Seconds before each further attempt."""
_MOST_WAITING = 1000
_SENDERS = 4
_TIMEOUT_SECONDS = 10.0
_MOST_SENT = 20_000
_GAP_SECONDS = 0.5
"""Seconds between two searches for ended jobs: jobs end in bursts."""


class _Refused(Exception):
    """The target does not want this notice: it is not sent again."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice of a job's end, and the address to send it to."""

    target: str
    content: dict[str, Any]


@dataclass(slots=True)
class NoticeSender:
    """Sends notices in threads of its own, again after failures; ``smtp`` is HOST or HOST:PORT."""

    smtp: str = ""
    pauses: tuple[float, ...] = _PAUSES
    _waiting: list[tuple[float, int, int, Notice]] = field(default_factory=list)
    """Heap of the time due, a number that orders equal times, the attempts made, and the notice."""
    _number: int = 0
    _changed: threading.Condition = field(default_factory=threading.Condition)
    _stopped: bool = False
    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(_SENDERS, "notice"))

    def start(self) -> None:
        """Start the thread that sends notices."""
        threading.Thread(target=self._run, name="notices", daemon=True).start()

    def stop(self) -> None:
        """Send nothing more."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def send(self, notice: Notice) -> None:
        """Send a notice soon; it is dropped if too many wait."""
        with self._changed:
            full = len(self._waiting) >= _MOST_WAITING
            if not full:
                self._push(notice, 0, 0.0)
        if full:
            log.warning("a notice is dropped: too many wait", extra={"target": _place(notice.target)})

    def _push(self, notice: Notice, attempts: int, pause: float) -> None:
        self._number += 1
        heapq.heappush(self._waiting, (time.monotonic() + pause, self._number, attempts, notice))
        self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopped and not (self._waiting and self._waiting[0][0] <= time.monotonic()):
                    self._changed.wait(self._waiting[0][0] - time.monotonic() if self._waiting else None)
                if self._stopped:
                    return
                _, _, attempts, notice = heapq.heappop(self._waiting)
                self._pool.submit(self._attempt, notice, attempts)

    def _attempt(self, notice: Notice, attempts: int) -> None:
        fields = {"target": _place(notice.target), "job": notice.content["id"]}
        try:
            self._deliver(notice)
        except _Refused as refusal:
            log.warning("a notice was refused", extra={**fields, "error": str(refusal)})
        except (OSError, HTTPException, SMTPException) as error:
            if attempts >= len(self.pauses):
                log.warning("a notice could not be delivered", extra={**fields, "error": str(error)})
                return
            with self._changed:
                if not self._stopped:
                    self._push(notice, attempts + 1, self.pauses[attempts])

    def _deliver(self, notice: Notice) -> None:
        address = mail_address(notice.target)
        if address is None:
            _post(notice)
        else:
            host, _, port = self.smtp.partition(":")
            with SMTP(host, int(port or 25), timeout=_TIMEOUT_SECONDS) as server:
                server.send_message(_mail(address, notice.content))


def _post(notice: Notice) -> None:
    """Post the notice as JSON; redirects are not followed, since they could lead anywhere."""
    parts, path = web_address(notice.target)
    kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=_TIMEOUT_SECONDS)
    try:
        headers = {"Content-Type": "application/json", "User-Agent": "shoal"}
        connection.request("POST", path, json.dumps(notice.content).encode(), headers)
        status = connection.getresponse().status
    finally:
        connection.close()
    if status == 429 or status >= 500:
        raise HTTPException(f"answered {status}")
    if not 200 <= status < 300:
        raise _Refused(f"answered {status}")


def _mail(address: str, content: dict[str, Any]) -> EmailMessage:
    message = EmailMessage()
    message["From"], message["To"] = "shoal", address
    message["Subject"] = content["text"]
    message.set_content("\n".join(f"{name}: {value}" for name, value in content.items() if value is not None) + "\n")
    return message


def _place(target: str) -> str:
    """Return a target without its path, which may be a secret."""
    return mail_address(target) or web_address(target)[0].netloc


def notices_of(account: Account, epoch: float) -> list[Notice]:
    """Return the notices of a job's end; the first fields are those of `shoal acct`."""
    if account.ended is None:
        return []
    took, state = account.ended - account.submitted, account.state.name.lower()
    cause = printable(account.cause)
    content = {
        "id": account.spec.id,
        "name": account.launch.name,
        "tenant": account.spec.tenant,
        "state": state,
        "cause": cause,
        "submitted": epoch + account.submitted,
        "started": None if account.started is None else epoch + account.started,
        "ended": epoch + account.ended,
        "gpu_seconds": account.gpu_seconds,
        "exit_status": account.exit_status,
        "text": f"job {account.spec.id} {state} after {span(took)}{f': {cause}' if cause else ''}"[:300],
    }
    return [Notice(target, content) for target in account.launch.notify]


@dataclass(slots=True)
class EndWatcher:
    """Finds the jobs that ended since its last search and passes their notices to ``send``."""

    accounts: Accounts
    lock: Any
    """Guards the accounts."""
    epoch: float
    send: Callable[[Notice], None]
    _seen: int = field(init=False)
    _sent: dict[int, None] = field(default_factory=dict)
    """The jobs whose notices were sent lately: they may change again."""
    _wake: threading.Event = field(default_factory=threading.Event)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._seen = self.accounts.changes.number

    def start(self) -> None:
        """Start the thread that searches for ended jobs after each ``wake``."""
        threading.Thread(target=self._run, name="ends", daemon=True).start()

    def wake(self) -> None:
        """Have the thread search once more; callable from any thread, and returns at once."""
        self._wake.set()

    def stop(self) -> None:
        """Stop searching for ended jobs."""
        self._stopped.set()
        self._wake.set()

    def look(self) -> None:
        """Send the notices of the jobs that ended since the last call."""
        self._seen, changed = self.accounts.changes.since(self._seen)
        if changed is None:  # more than are remembered
            log.warning("too many jobs changed at once: no notices of ends among them")
            return
        with self.lock:
            known = self.accounts.accounts
            found = [known[job] for job, _ in changed if job in known and job not in self._sent]
            ended = [account for account in found if account.ended is not None and account.launch.notify]
        for account in ended:
            self._sent[account.number] = None
            if len(self._sent) > _MOST_SENT:
                del self._sent[next(iter(self._sent))]
            for notice in notices_of(account, self.epoch):
                self.send(notice)

    def _run(self) -> None:
        while not self._stopped.is_set():
            self._wake.wait()
            self._wake.clear()
            self.look()
            self._stopped.wait(_GAP_SECONDS)
