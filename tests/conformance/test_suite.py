"""The suite itself: for each promise a policy that breaks it, and is caught at it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf

import numpy as np
import pytest

from shoal.core.decision import Decision, Grant, Refusal, Verdict, Verdicts
from shoal.core.interfaces import Policy
from shoal.core.reasons import FITS, NO_ROOM, Reason, in_words
from shoal.core.snapshot import Snapshot
from shoal.policy.classic.fifo import Fifo
from shoal.testing.builders import job, snapshot
from shoal.testing.conformance import (
    CHECKS,
    check_decision,
    check_no_starvation,
    check_policy,
    check_replay,
    check_too_large,
    same,
)


@dataclass(frozen=True)
class Plain:
    """What a newcomer writes first: in order of arrival, whoever fits, told in words."""

    def decide(self, snapshot: Snapshot) -> Decision:
        return Decision(plain_verdicts(snapshot))


def plain_verdicts(snapshot: Snapshot) -> dict[str, Verdict]:
    free = list(snapshot.cluster.capacity)
    verdicts: dict[str, Verdict] = {}
    for view in snapshot.jobs.values():
        speeds = snapshot.columns.speeds[view.position]
        fits = [k for k in range(len(free)) if speeds[k] > 0 and free[k] >= view.gpus]
        stays = snapshot.cluster.kind_index[view.kind] if view.kind else -1
        if fits:
            kind = stays if stays in fits else fits[0]
            free[kind] -= view.gpus
            verdicts[view.id] = Grant(view.gpus, kind=snapshot.cluster.kinds[kind])
        else:
            verdicts[view.id] = Refusal(in_words(f"waits: needs {view.gpus} GPUs of {max(snapshot.cluster.installed)}"))
    return verdicts


def test_a_plain_policy_conforms() -> None:
    check_policy(Plain)


# ── broken in one decision ────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Doing:
    """The plain policy with something done to its answer."""

    spoil: Callable[[Snapshot, dict[str, Verdict]], Mapping[str, Verdict]]
    review_at: Callable[[Snapshot], float] = lambda snapshot: inf

    def decide(self, snapshot: Snapshot) -> Decision:
        return Decision(self.spoil(snapshot, plain_verdicts(snapshot)), self.review_at(snapshot))


def forget_one(snapshot: Snapshot, verdicts: dict[str, Verdict]) -> dict[str, Verdict]:
    return dict(list(verdicts.items())[1:])


def grant_half(snapshot: Snapshot, verdicts: dict[str, Verdict]) -> dict[str, Verdict]:
    return {n: Grant(max(v.gpus // 2, 1)) if isinstance(v, Grant) else v for n, v in verdicts.items()}


def grant_all(snapshot: Snapshot, verdicts: dict[str, Verdict]) -> dict[str, Verdict]:
    return {view.id: Grant(view.gpus) for view in snapshot.jobs.values()}


def grant_one_kind(snapshot: Snapshot, verdicts: dict[str, Verdict]) -> dict[str, Verdict]:
    return {n: replace(v, kind="v100") if isinstance(v, Grant) else v for n, v in verdicts.items()}


def share_one_way(snapshot: Snapshot, verdicts: dict[str, Verdict]) -> Mapping[str, Verdict]:
    columns = Verdicts.of(snapshot, verdicts)
    partners = np.full(len(columns), -1, dtype=np.int32)
    partners[0] = 1
    return Verdicts(
        snapshot, gpus=columns.gpus, codes=columns.codes, partners=partners, own=dict(enumerate(columns.values()))
    )


def say_too_little(snapshot: Snapshot, verdicts: dict[str, Verdict]) -> dict[str, Verdict]:
    return {n: Refusal(Reason(NO_ROOM, (4.0,))) for n in verdicts}


def say_nothing(snapshot: Snapshot, verdicts: dict[str, Verdict]) -> dict[str, Verdict]:
    return {n: Refusal(in_words(" ")) for n in verdicts}


def say_nan(snapshot: Snapshot, verdicts: dict[str, Verdict]) -> dict[str, Verdict]:
    return {n: Refusal(Reason(NO_ROOM, (4.0, float("nan")))) for n in verdicts}


def refuse_with_a_grants_reason(snapshot: Snapshot, verdicts: dict[str, Verdict]) -> dict[str, Verdict]:
    return {n: Refusal(Reason(FITS, (4.0, 4.0))) for n in verdicts}


def nothing(snapshot: Snapshot, verdicts: dict[str, Verdict]) -> dict[str, Verdict]:
    return verdicts


@dataclass
class Counting:
    """Remembers in itself how often it was asked."""

    asked: "count[int]" = field(default_factory=count)

    def decide(self, snapshot: Snapshot) -> Decision:
        odd = next(self.asked) % 2
        return Decision(
            {name: Refusal(in_words("waits")) if odd else v for name, v in plain_verdicts(snapshot).items()}
        )


@dataclass
class Carrying(Counting):
    """Returns another carry each time."""

    def decide(self, snapshot: Snapshot) -> Decision:
        return Decision(plain_verdicts(snapshot), carry=np.arange(next(self.asked)))


@dataclass
class Reviewing(Counting):
    """Returns another review each time."""

    def decide(self, snapshot: Snapshot) -> Decision:
        return Decision(plain_verdicts(snapshot), review_at=snapshot.now + 1 + next(self.asked))


@dataclass(frozen=True)
class Clinging:
    """Cannot decide without what it carried."""

    def decide(self, snapshot: Snapshot) -> Decision:
        if snapshot.carry is None and snapshot.cycle:
            raise KeyError("carry")
        return Decision(plain_verdicts(snapshot), carry=1)


@dataclass(frozen=True)
class Scribbling:
    """Keeps notes in what it was handed to carry."""

    def decide(self, snapshot: Snapshot) -> Decision:
        if isinstance(snapshot.carry, list):
            snapshot.carry.append(snapshot.now)
        return Decision(plain_verdicts(snapshot), carry=[])


def a_moment() -> Snapshot:
    rows = [job("a", gpus=2), job("b", gpus=2), job("c", gpus=4), job("d", gpus=8)]
    moment = snapshot(rows, "v100:1x4,k80:1x8", held={"a": 2}, carry=[], now=10.0)
    return replace(moment, cycle=3)


ONE_DECISION: dict[str, tuple[Policy, str]] = {
    "forgets a job": (Doing(forget_one), "verdicts for"),
    "breaks a gang": (Doing(grant_half), "it runs on 2 to 2"),
    "grants more than there is": (Doing(grant_all), "16 GPUs granted, 12 are up"),
    "grants more of a kind than there is": (Doing(grant_one_kind), "GPUs of v100 granted, 4 are up"),
    "shares one way": (Doing(share_one_way), "shares with b, but not b with it"),
    "gives too few numbers": (Doing(say_too_little), "makes no sentence"),
    "says nothing": (Doing(say_nothing), "has an empty reason"),
    "says nan": (Doing(say_nan), "nan"),
    "refuses with a grant's reason": (Doing(refuse_with_a_grants_reason), "says .runs: it fits"),
    "reviews now": (Doing(nothing, lambda s: s.now), "is not later"),
    "reviews at no time": (Doing(nothing, lambda s: float("nan")), "is not later"),
    "remembers in itself": (Counting(), "two different decisions"),
    "carries what it likes": (Carrying(), "two different carries"),
    "reviews when it likes": (Reviewing(), "two different times of review"),
    "cannot do without its carry": (Clinging(), "carry"),
    "writes to its carry": (Scribbling(), "wrote to the snapshot"),
}


@pytest.mark.parametrize(("policy", "said"), ONE_DECISION.values(), ids=ONE_DECISION.keys())
def test_a_policy_is_caught_in_one_decision_when_it(policy: Policy, said: str) -> None:
    with pytest.raises((AssertionError, KeyError), match=said):
        check_decision(policy, a_moment())


# ── broken over time ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Unfair:
    """Never serves a wide job."""

    def decide(self, snapshot: Snapshot) -> Decision:
        verdicts = plain_verdicts(snapshot)
        wide = {n for n, v in snapshot.jobs.items() if v.gpus > 4}
        return Decision({n: Refusal(in_words("waits: 8 or 9")) if n in wide else v for n, v in verdicts.items()})


@dataclass(frozen=True)
class Vague:
    """Says of a job that is too large only that it waits."""

    def decide(self, snapshot: Snapshot) -> Decision:
        verdicts = plain_verdicts(snapshot)
        return Decision({n: v if isinstance(v, Grant) else Refusal(in_words("waits")) for n, v in verdicts.items()})


class Dicey:
    """Rolls dice that no seed knows of: each instance has dice of its own."""

    made = count()

    def __init__(self) -> None:
        self.mood = next(Dicey.made)

    def decide(self, snapshot: Snapshot) -> Decision:
        return Decision(plain_verdicts(snapshot), review_at=snapshot.now + 10 + self.mood)


OVER_TIME: dict[str, tuple[Callable[[Callable[[], Policy]], None], Callable[[], Policy], str]] = {
    "starves the wide": (check_no_starvation, Unfair, "wide could run but never completed"),
    "does not tell the numbers": (check_too_large, Vague, "lacks these numbers"),
    "differs from run to run": (check_replay, Dicey, "different journals"),
}


@pytest.mark.parametrize(("check", "make", "said"), OVER_TIME.values(), ids=OVER_TIME.keys())
def test_a_policy_is_caught_over_time_when_it(
    check: Callable[[Callable[[], Policy]], None], make: Callable[[], Policy], said: str
) -> None:
    with pytest.raises(AssertionError, match=said):
        check(make)


def test_check_policy_runs_every_check() -> None:
    assert len(CHECKS) == len(set(CHECKS.values()))
    with pytest.raises(AssertionError):
        check_policy(Unfair)
    check_policy(Fifo)


def test_carries_are_compared_by_value_arrays_and_all() -> None:
    @dataclass(frozen=True)
    class Memory:
        order: object
        names: tuple[str, ...]

    assert same(Memory(np.arange(3), ("a",)), Memory(np.arange(3), ("a",)))
    assert not same(Memory(np.arange(3), ("a",)), Memory(np.arange(4), ("a",)))
    assert not same(Memory(np.arange(3), ("a",)), Memory(np.arange(3.0), ("a",)))
    assert same({"x": [np.array([np.nan])]}, {"x": [np.array([np.nan])]})
    assert not same((1, 2), [1, 2])
    assert not same({"x": 1}, {"y": 1})
