"""Sessions as the control plane passes them on: bounded, counted, closed in time, and each byte once."""

import pytest

from shoal.core.errors import InputError
from shoal.live.sessions import IDLE_SECONDS, MOST_SESSIONS_EACH, SessionRelay
from shoal.wire.messages import NewSession, SessionOutput, SessionPiece


class Relay(SessionRelay):
    """A relay whose clock is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(clock=lambda: self.now)

    def begin(self, caller: str = "ann", *, attached: bool = True) -> str:
        name = self.open(NewSession(command=["sh"]), (7, 2, 1), (0, "gpu-0"), caller=caller, tenant="ann")
        if attached:
            self.get_input(self.of_agent(name, "gpu-0"), 0)
        return name


@pytest.fixture
def relay() -> Relay:
    return Relay()


def out(*texts: bytes) -> list[SessionPiece]:
    return [SessionPiece("out", text) for text in texts]


def test_a_session_is_ordered_from_its_node_alone(relay: Relay) -> None:
    name = relay.begin()
    (order,) = relay.orders(0)
    assert (order.session, order.job, order.incarnation, order.rank, order.command) == (name, 7, 2, 1, ["sh"])
    assert relay.orders(1) == []


def test_pieces_that_come_twice_count_once_and_those_that_arrived_are_dropped(relay: Relay) -> None:
    session = relay.of_client(relay.begin(), "ann")
    assert relay.put_output(session, SessionOutput(first=0, pieces=out(b"a", b"b"))) == 2
    assert relay.put_output(session, SessionOutput(first=1, pieces=out(b"b", b"c"))) == 3
    assert relay.put_output(session, SessionOutput(first=9, pieces=out(b"z"))) == 3, "a gap is not filled"
    assert [piece.data for piece in relay.get_output(session, 0).pieces] == [b"a", b"b", b"c"]
    found = relay.get_output(session, 2)
    assert (found.first, [piece.data for piece in found.pieces]) == (2, [b"c"])


def test_output_waits_where_its_reader_is_slow(relay: Relay) -> None:
    session = relay.of_client(relay.begin(), "ann")
    large = out(*[bytes(100_000)] * 6)
    taken = relay.put_output(session, SessionOutput(first=0, pieces=large))
    assert taken == 3
    assert not relay.room(session, session.output)
    relay.get_output(session, taken)
    assert relay.put_output(session, SessionOutput(first=taken, pieces=large[taken:])) == 6


def test_the_end_is_given_after_the_last_output(relay: Relay) -> None:
    session = relay.of_client(relay.begin(), "ann")
    relay.put_output(session, SessionOutput(first=0, pieces=out(*[b"x"] * 8)))
    relay.put_output(session, SessionOutput(first=8, pieces=out(b"y"), ended=True, status=3))
    first = relay.get_output(session, 0)
    assert (len(first.pieces), first.ended) == (8, False)
    last = relay.get_output(session, 8)
    assert ([piece.data for piece in last.pieces], last.ended, last.status) == ([b"y"], True, 3)
    assert relay.orders(0) == []


def test_only_the_owner_an_admin_and_the_node_have_a_session(relay: Relay) -> None:
    name = relay.begin()
    assert relay.of_client(name, None) is relay.of_client(name, "ann") is relay.of_agent(name, "gpu-0")
    for find, who in ((relay.of_client, "bob"), (relay.of_agent, "gpu-1")):
        with pytest.raises(LookupError):
            find(name, who)


def test_a_tenant_has_a_bounded_number_of_sessions(relay: Relay) -> None:
    names = [relay.begin() for _ in range(MOST_SESSIONS_EACH)]
    with pytest.raises(InputError, match="at most 8 of a tenant"):
        relay.begin()
    relay.begin("bob")
    relay.close(relay.of_client(names[0], "ann"))
    relay.begin()


def test_a_session_is_closed_when_an_end_is_silent_or_nothing_passes(relay: Relay) -> None:
    def why(name: str) -> str:
        return relay.get_output(relay.of_client(name, None), 0).cause

    name = relay.begin(attached=False)
    relay.now += 21
    assert relay.orders(0) == []
    assert why(name) == "node gpu-0 has not answered; see `shoal nodes`"

    name = relay.begin()
    for _ in range(7):
        relay.now += 10
        relay.get_output(relay.of_client(name, None), 0)
    assert why(name) == "node gpu-0 no longer answers"

    name = relay.begin()
    for _ in range(5):
        relay.now += 10
        assert not relay.get_input(relay.of_agent(name, "gpu-0"), 0).ended
    relay.now += 10
    assert relay.get_input(relay.of_agent(name, "gpu-0"), 0).ended

    name, began = relay.begin(), relay.now
    while relay.now < began + IDLE_SECONDS - 50:
        relay.now += 50
        relay.get_input(relay.of_agent(name, "gpu-0"), 0)
        assert not relay.get_output(relay.of_client(name, None), 0).ended
    relay.now += 50
    assert why(name) == "it was idle for too long"
    relay.now += 61
    with pytest.raises(LookupError):
        relay.of_client(name, None)
