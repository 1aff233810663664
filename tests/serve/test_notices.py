"""The ends of jobs are told to the addresses they name, of those the operator allows, and nothing waits for that."""

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Queue
from typing import Any

import pytest

from shoal.core.errors import InputError
from shoal.core.events import JobCancelled, JobSubmitted
from shoal.core.job import JobSpec, Launch
from shoal.core.topology import parse_cluster
from shoal.live.accounts import Accounts
from shoal.live.notice_targets import NoticeTargets
from shoal.serve.notices import EndWatcher, Notice, NoticeSender

TARGETS = NoticeTargets(("hooks.example.org", "10.0.0.7:8080", "@example.org"), smtp="mail.example.org:2525")


@pytest.mark.parametrize(
    "target",
    [
        "https://hooks.example.org/a?b=c",
        "http://HOOKS.example.org",
        "https://hooks.example.org:443/x",
        "http://10.0.0.7:8080/x",
        "mail:ana+jobs@example.org",
    ],
)
def test_what_the_operator_allows_is_accepted(target: str) -> None:
    assert TARGETS.check([target]) == (target,)


@pytest.mark.parametrize(
    "target",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://localhost/",
        "http://10.0.0.7/",
        "https://hooks.example.org:8443/",
        "https://hooks.example.org.evil.org/",
        "https://hooks.example.org@evil.org/",
        "https://evil.org#hooks.example.org",
        "https://evil.org\\@hooks.example.org/",
        "https://hooks.example.org/\r\nHost: evil.org",
        "ftp://hooks.example.org/",
        "file:///etc/passwd",
        "http://[::1",
        "hooks.example.org",
        "mail:ana@evil.org",
        "mail:ana@example.org, bo@evil.org",
        "mail:ana@example.org\nBcc: bo@evil.org",
    ],
)
def test_everything_else_is_refused(target: str) -> None:
    with pytest.raises(InputError, match="notify"):
        TARGETS.check([target])


def test_by_default_nothing_is_allowed_and_a_wrong_entry_is_named() -> None:
    with pytest.raises(InputError, match=r"hooks\.example\.org is not among the allowed ones, none"):
        NoticeTargets().check(["https://hooks.example.org/"])
    with pytest.raises(InputError, match="sends no mail"):
        NoticeTargets(("@example.org",)).check(["mail:ana@example.org"])
    with pytest.raises(InputError, match="notify-allow"):
        NoticeTargets(("https://hooks.example.org/",))


class Hook:
    """A web server on this machine that answers with the statuses it is given, the last one again and again."""

    def __init__(self, *statuses: int) -> None:
        self.got: Queue[tuple[str, Any]] = Queue()
        left = list(statuses)
        got = self.got

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                got.put((self.path, body))
                self.send_response(left.pop(0) if len(left) > 1 else left[0])
                self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.05})
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def sender() -> Iterator[NoticeSender]:
    made = NoticeSender(pauses=(0.01, 0.01))
    made.start()
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("statuses", "attempts"), [((204,), 1), ((500, 429, 200), 3), ((503,), 3), ((404,), 1), ((302,), 1)]
)
def test_failures_are_tried_again_a_few_times_and_refusals_and_redirects_never(
    sender: NoticeSender, statuses: tuple[int, ...], attempts: int, caplog: pytest.LogCaptureFixture
) -> None:
    hook = Hook(*statuses)
    try:
        sender.send(Notice(f"{hook.url}/secret?x=1", {"id": "a", "state": "completed"}))
        for _ in range(attempts):
            assert hook.got.get(timeout=20) == ("/secret?x=1", {"id": "a", "state": "completed"})
        sender.send(Notice(f"{hook.url}/last", {"id": "b"}))
        assert hook.got.get(timeout=20)[0] == "/last"  # and nothing of the first in between
        deadline = time.monotonic() + 20.0
        while statuses[-1] in (302, 404) and "a notice was refused" not in caplog.text:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert "secret" not in caplog.text
    finally:
        hook.close()


def test_each_end_is_reported_once_and_earlier_ends_never() -> None:
    told: list[Notice] = []
    accounts = Accounts(parse_cluster("v100:1x4").nodes)
    launch = Launch("train", ("true",), notify=("https://hooks.example.org/a", "mail:ana@example.org"))

    def submit(number: int, launch: Launch) -> None:
        spec = JobSpec(f"j{number}", float(number), 1, None, 1, 1, tenant="ana")
        accounts.apply_events([JobSubmitted(float(number), spec, launch)])

    submit(0, launch)
    accounts.apply_events([JobCancelled(1.0, 0, "early", False)])
    watcher = EndWatcher(accounts, threading.Lock(), 1000.0, told.append)
    submit(1, launch)
    submit(2, replace(launch, notify=()))
    watcher.look()
    assert told == []
    accounts.apply_events([JobCancelled(181.0, 1, "by\nhand", False), JobCancelled(181.0, 2, "", False)])
    watcher.look()
    accounts.changes.note(1, "j1", "ana")
    watcher.look()
    assert [notice.target for notice in told] == list(launch.notify)
    content = told[0].content
    assert (content["id"], content["tenant"], content["state"], content["ended"]) == ("j1", "ana", "cancelled", 1181.0)
    assert content["text"].startswith("job j1 cancelled after 3 min")
    assert "\n" not in content["text"]
