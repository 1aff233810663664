"""Sessions from both ends: whole orders and pieces, who is told of changes, and the sentence of each end."""

from dataclasses import dataclass, field

import pytest
from tests.live.test_session_relay import Relay, out
from tests.refusals import refusal

from shoal.live.sessions import IDLE_SECONDS, MOST_SESSIONS, MOST_SESSIONS_EACH, RelayedSession
from shoal.wire.messages import NewSession, SessionOrder, SessionOutput, SessionPieces


@dataclass
class Told:
    """A relay and the number of changes that it told of since they were last counted."""

    relay: Relay = field(default_factory=Relay)
    changes: int = 0

    def __post_init__(self) -> None:
        self.relay.on_change = self.note

    def note(self) -> None:
        self.changes += 1

    def counted(self) -> int:
        found, self.changes = self.changes, 0
        return found


def test_an_order_has_the_whole_request_and_goes_to_its_agent_until_the_session_ends() -> None:
    relay = Relay()
    wanted = NewSession(command=["sh", "-l"], rank=5, terminal="xterm", rows=30, columns=100)
    name = relay.open(wanted, (7, 2, 1), ("a.1.gpu-0", "a.1.gpu-0"), caller="ann", tenant="ann")
    assert len(name) == 32
    (order,) = relay.orders("a.1.gpu-0")
    assert order == SessionOrder(
        session=name, job=7, incarnation=2, rank=1, command=["sh", "-l"], terminal="xterm", rows=30, columns=100
    )
    assert relay.orders(0) == []
    relay.close(relay.of_client(name, "ann"))
    assert relay.orders("a.1.gpu-0") == []


def test_input_and_output_are_numbered_pieces_and_each_side_wakes_the_other() -> None:
    it = Told()
    session = it.relay.of_client(it.relay.begin(), "ann")
    it.counted()
    assert it.relay.put_input(session, 0, out(b"a", b"b")) == 2
    assert (it.counted(), it.relay.get_input(session, 1)) == (1, SessionPieces(first=1, pieces=out(b"b"), ended=False))
    assert (it.counted(), it.relay.put_output(session, SessionOutput(first=0, pieces=out(b"x")))) == (1, 1)
    assert it.relay.get_output(session, 0) == SessionPieces(
        first=0, pieces=out(b"x"), ended=False, status=None, cause=""
    )
    assert it.counted() == 2
    it.relay.put_output(session, SessionOutput(first=1, pieces=[], ended=True, status=-9, cause="it was killed"))
    it.relay.put_output(session, SessionOutput(first=1, pieces=[], ended=True, status=0, cause="late"))
    it.relay.close(session)
    assert it.counted() == 3
    assert it.relay.get_output(session, 1) == SessionPieces(
        first=1, pieces=[], ended=True, status=-9, cause="it was killed"
    )
    assert it.relay.get_input(session, 2).ended


def test_a_reader_waits_until_there_is_a_newer_piece_or_an_end() -> None:
    relay = Relay()
    session = relay.of_client(relay.begin(), "ann")
    assert relay.waits(session, session.output, 0)
    relay.put_output(session, SessionOutput(first=0, pieces=out(b"x")))
    assert [relay.waits(session, session.output, after) for after in (0, 1, 2)] == [False, True, True]
    relay.close(session)
    assert not relay.waits(session, session.output, 1)
    assert relay.room(session, session.output)
    assert relay.get_output(session, 1) == SessionPieces(
        first=1, pieces=[], ended=True, status=None, cause="it was closed"
    )


def test_a_tenant_and_all_together_have_a_bounded_number_of_sessions() -> None:
    relay = Relay()
    for _ in range(MOST_SESSIONS_EACH):
        relay.begin()
    sentence = f"at most {MOST_SESSIONS_EACH} of a tenant and {MOST_SESSIONS} in all; close one"
    with refusal(f"sessions: 8: {sentence}"):
        relay.begin()
    for number in range(MOST_SESSIONS - MOST_SESSIONS_EACH):
        relay.begin(f"tenant-{number}")
    with refusal(f"sessions: 0: {sentence}"):
        relay.begin("another")


@pytest.mark.parametrize(
    ("agent", "shown"), [((0, "gpu-0"), "node gpu-0"), (("a.1.gpu-0", "a.1.gpu-0"), "allocation a.1.gpu-0")]
)
def test_the_end_of_a_silent_session_names_its_node_or_allocation(agent: tuple[int | str, str], shown: str) -> None:
    relay = Relay()

    def opened() -> RelayedSession:
        name = relay.open(NewSession(command=["sh"]), (7, 2, 1), agent, caller="ann", tenant="ann")
        return relay.of_client(name, "ann")

    def after(seconds: float, session: RelayedSession) -> str:
        relay.now += seconds
        relay.get_output(session, 0)  # its client is there
        relay.orders(0)
        return session.cause

    session = opened()
    assert after(19.0, session) == ""
    assert after(1.0, session) == f"{shown} has not answered; see `shoal nodes`"
    session = opened()
    relay.get_input(session, 0)
    assert after(59.0, session) == ""
    assert after(1.0, session) == f"{shown} no longer answers"
    session = opened()
    relay.get_input(session, 0)
    relay.now += 30.0
    relay.get_input(session, 0)
    relay.now += 30.0
    assert relay.orders(0) == []
    assert (session.ended, session.status, session.cause) == (True, None, "its client has gone")


def test_a_session_in_which_bytes_pass_is_not_idle() -> None:
    relay = Relay()
    session = relay.of_client(relay.begin(), "ann")
    for number in range(int(3 * IDLE_SECONDS / 50)):
        relay.now += 50.0
        if number % 400 == 0:
            relay.put_output(session, SessionOutput(first=session.output.next, pieces=out(b"x")))
        elif number % 400 == 200:
            relay.put_input(session, session.input.next, out(b"y"))
        relay.get_input(session, session.input.next)
        relay.get_output(session, session.output.next)
    relay.orders(0)
    assert not session.ended
