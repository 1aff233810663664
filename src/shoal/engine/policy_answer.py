"""Call a policy and check its answer: a fault is a ``PolicyError`` of one line that names the policy and the job."""

from collections.abc import Mapping
from math import inf
from pathlib import PurePath
from types import MappingProxyType
from typing import Any

import numpy as np

from shoal.core.decision import Decision, Grant, Refusal, Verdict, Verdicts
from shoal.core.errors import PolicyError, ShoalError
from shoal.core.interfaces import Policy
from shoal.core.reasons import SET_ASIDE, Reason, in_words
from shoal.core.snapshot import Snapshot
from shoal.core.topology import Placement
from shoal.core.units import JobId

MOST_ASKS = 8
"""Most times that a rule asks a policy again at one decision; each time it sees fewer jobs."""


def ask(
    policy: Policy, snapshot: Snapshot, hidden: Mapping[int, Verdict] = MappingProxyType({})
) -> tuple[Decision, Verdicts]:
    """Return the policy's decision and its verdicts as columns, or raise ``PolicyError``.

    The policy does not see jobs that are set aside, or suspended and held by a person, which are refused; nor jobs at
    the positions in ``hidden``, which get the verdicts given there.
    """
    if not (hidden or snapshot.set_aside or snapshot.suspensions.held):
        return _ask(policy, snapshot)
    given, review_at = dict(hidden), inf
    for i in snapshot.kept_from_policy.tolist() if snapshot.set_aside else ():
        event = snapshot.set_aside[int(snapshot.columns.rows[i])]
        given[i] = Refusal(Reason(SET_ASIDE, (event.reason, event.retry_at)))
        review_at = min(review_at, event.retry_at)
    for job in snapshot.suspensions.held:
        if (i := snapshot.position_of(job)) >= 0:
            node = snapshot.cluster.nodes[snapshot.suspensions.runs[job].placement.nodes[0]].name
            why = f"waits: it is suspended on {node} and held; `shoal release` lets it be resumed"
            given[i] = Refusal(in_words(why))
    if not given:
        return _ask(policy, snapshot)
    positions = np.array(sorted(given), dtype=np.intp)
    decision, verdicts = _ask(policy, snapshot.without(positions))
    verdicts = verdicts.widened(snapshot, np.delete(np.arange(len(snapshot.columns)), positions), given)
    return Decision(verdicts, min(decision.review_at, review_at), decision.carry), verdicts


def _ask(policy: Policy, snapshot: Snapshot) -> tuple[Decision, Verdicts]:
    try:
        decision = policy.decide(snapshot)
        return decision, _checked(decision, snapshot)
    except PolicyError as error:
        raise PolicyError(f"policy {_unwrapped(policy).__name__}: {error}") from error
    except ShoalError:
        raise
    except Exception as error:
        own, fault = _unwrapped(policy), f"{type(error).__name__}: {error}"
        when = f"t = {snapshot.now:,.6g} s"
        raise PolicyError(f"policy {own.__name__} failed at {when}: {fault}{_line(own, error)}") from error


def _unwrapped(policy: Policy) -> type[Policy]:
    """Return the class of the policy, also of one inside a wrapper that has it as ``policy``."""
    while (inner := getattr(policy, "policy", None)) is not None and hasattr(inner, "decide"):
        policy = inner
    return type(policy)


def _line(own: type[Policy], error: Exception) -> str:
    """Return the last line of the policy's own file that the error passed through, or nothing if there is none."""
    code = getattr(own.decide, "__code__", None)
    found, frame = "", error.__traceback__
    while frame is not None:
        if code is not None and frame.tb_frame.f_code.co_filename == code.co_filename:
            found = f" ({PurePath(code.co_filename).name}, line {frame.tb_lineno})"
        frame = frame.tb_next
    return found


def _checked(decision: Any, snapshot: Snapshot) -> Verdicts:
    if not isinstance(decision, Decision):
        raise PolicyError(f"decide returned {_shown(decision)}; it must return a Decision")
    at = decision.review_at
    if type(at) not in (float, int):
        raise PolicyError(f"review_at is {_shown(at)}; it must be a plain number of seconds, such as float(…)")
    if not at > snapshot.now:
        raise PolicyError(f"a review at t = {at} is not after t = {snapshot.now}, when it was decided")
    verdicts = decision.verdicts
    if not isinstance(verdicts, Verdicts):
        if not isinstance(verdicts, Mapping):
            raise PolicyError(f"the verdicts are {_shown(verdicts)}; they must be a mapping by job")
        if not all(map(_is_plain, verdicts.values())):
            for job, verdict in verdicts.items():
                _check_verdict(job, verdict, snapshot)
        verdicts = Verdicts.of(snapshot, verdicts)
    gpus = verdicts.gpus
    if gpus is not snapshot.columns.gpus and len(gpus) and gpus.item(worst := int(gpus.argmin())) < 0:
        raise PolicyError(f"job {snapshot.ids[worst]!r} is granted {gpus[worst]} GPUs")
    return verdicts


def _is_plain(verdict: Any) -> bool:
    """Whether a verdict is of the simplest kind, in which nothing can be wrong."""
    if type(verdict) is Refusal:
        return type(verdict.reason) is Reason
    plain = type(verdict) is Grant and type(verdict.gpus) is int and type(verdict.reason) is Reason
    return plain and not verdict.detailed


def _check_verdict(job: JobId, verdict: Any, snapshot: Snapshot) -> None:
    if not isinstance(verdict, Grant | Refusal):
        raise PolicyError(f"the verdict for job {job!r} is {_shown(verdict)}; it must be a Grant or a Refusal")
    if not isinstance(verdict.reason, Reason):
        raise PolicyError(f"the reason for job {job!r} is {_shown(verdict.reason)}; it must be a Reason")
    if isinstance(verdict, Refusal):
        return
    gpus, seats = verdict.gpus, verdict.placement
    if not isinstance(gpus, int | np.integer):
        raise PolicyError(f"job {job!r} is granted {_shown(gpus)} GPUs; it must be a whole number")
    if verdict.shared_with == job:
        raise PolicyError(f"job {job!r} is granted GPUs shared with itself")
    if seats is not None and not _exists(seats, gpus, snapshot):
        raise PolicyError(f"job {job!r} is granted {gpus} GPUs on seats {_shown(seats)}, which cannot be")


def _exists(seats: Any, gpus: int | np.integer[Any], snapshot: Snapshot) -> bool:
    nodes = snapshot.cluster.nodes
    return isinstance(seats, Placement) and seats.gpus == gpus and all(0 <= n < len(nodes) for n in seats.nodes)


def _shown(value: object) -> str:
    """Return a value and its type as text of one short line; None has no type added."""
    if value is None:
        return "None"
    text = " ".join(repr(value).split())
    return f"{text[:60]}{'…' * (len(text) > 60)} (a {type(value).__name__})"
