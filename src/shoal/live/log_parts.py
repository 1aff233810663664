"""Requests of the control plane to the node of a rank: parts of its log, and sessions beside it."""

from concurrent.futures import Future

from shoal.core.errors import InputError
from shoal.core.lifecycle import JobState
from shoal.live.accounts import Account
from shoal.live.backend import LiveBackend
from shoal.wire.messages import LogAnswer, LogPart, LogRead, NewSession, SessionOpened


def find_rank(backend: LiveBackend, account: Account, run: int, rank: int) -> tuple[tuple[int, int, int], int]:
    """Return a rank's node, the incarnation that started it and its number then; and how many ranks the run has."""
    placement = account.placements.get(run)
    if placement is None:
        hint = f"has runs 1 to {account.incarnation}" if account.incarnation else "has not run yet: see `shoal why`"
        raise InputError("incarnation", run, hint)
    node_of = [node for node, gpus in placement.seats for _ in range(1 if account.launch.ranks == "node" else gpus)]
    if rank >= len(node_of):
        raise InputError("rank", rank, f"run {run} has ranks 0 to {len(node_of) - 1}")
    # After a resize in place, an earlier incarnation may have started the rank, under another number.
    return backend.place(account.number, run, rank) or (node_of[rank], run, rank), len(node_of)


def open_session(backend: LiveBackend, account: Account, wanted: NewSession, caller: str) -> SessionOpened:
    """Start a command inside a running job, at one of its ranks."""
    job = account.spec.id
    if account.state is not JobState.RUNNING:
        raise InputError("job", job, f"is not running ({account.state.name.lower()}); see `shoal why {job}`")
    (node, began, number), _ = find_rank(backend, account, account.incarnation, wanted.rank)
    key, agent = (account.number, began, number), backend.agent_of_run(node, account.number, began)
    session = backend.sessions.open(wanted, key, agent, caller=caller, tenant=account.spec.tenant)
    backend.orders_changed(agent[0])
    return SessionOpened(session, backend.topology.nodes[node].name)


def read_log_part(
    backend: LiveBackend, account: Account, run: int, rank: int, *, offset: int, most: int
) -> "Future[LogPart]":
    """Request at most ``most`` bytes of a rank's log, from byte ``offset`` on, from its node."""
    part: Future[LogPart] = Future()
    (node, began, number), ranks = find_rank(backend, account, run, rank)
    job = account.spec.id
    agent, _ = backend.agent_of_run(node, account.number, began)
    asked = backend.read_log(agent, LogRead(0, job, began, number, offset, most))

    def answer(given: "Future[LogAnswer]") -> None:
        if given.cancelled() or part.cancelled():
            backend.forget_read(asked)
            return
        found = given.result()
        text, length = _decode(found.data)
        live = account.live and run == account.incarnation
        begin = offset if found.begin is None else found.begin
        end = offset + length if found.next is None or length < len(found.data) else found.next
        part.set_result(LogPart(job, run, rank, begin, max(found.size, 0), text, live, end, ranks))

    asked.add_done_callback(answer)
    part.add_done_callback(lambda _: backend.forget_read(asked))
    return part


def _decode(data: bytes) -> tuple[str, int]:
    """Return the text in these bytes and the number of bytes used; a character cut in two is left for the next read."""
    for cut in range(min(4, len(data) + 1)):
        try:
            return data[: len(data) - cut].decode(), len(data) - cut
        except UnicodeDecodeError:
            continue
    return data.decode(errors="replace"), len(data)
