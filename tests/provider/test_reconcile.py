"""The pure reconciliation of wanted allocations with those that an engine reports."""

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from shoal.provider.protocol import AgentCall, Allocation, AllocationState, Seen
from shoal.provider.reconcile import LONGEST_PAUSE, SILENCE, STABLE, Act, Close, Memory, Open, reconcile

WAITING, UP, ENDED, LOST = AllocationState

CALL = AgentCall(("--node", "a"), lambda: "secret")


def allocation(name: str, *, patience: float | None = None, group: str = "") -> Allocation:
    return Allocation(name, f"node-{name}", "v100", 4, CALL, patience=patience, group=group)


@dataclass
class Engine:
    """An engine whose allocations start, fail or hang as the test says."""

    state: AllocationState | None = UP
    """State of what is opened; None if the engine refuses it."""
    there: dict[str, Seen] = field(default_factory=dict)
    opened: list[tuple[float, str]] = field(default_factory=list)
    closed: list[tuple[float, str]] = field(default_factory=list)
    memory: Memory = field(default_factory=Memory)
    heard: dict[str, float] = field(default_factory=dict)
    deaf: bool = False
    """Whether closing has no effect."""

    def tick(self, now: float, wanted: Iterable[Allocation], *, answers: bool = True) -> list[Act]:
        seen = list(self.there.values()) if answers else None
        acts, self.memory = reconcile(wanted, seen, self.heard, now, self.memory)
        for act in acts:
            if isinstance(act, Open):
                self.opened.append((now, act.allocation.name))
                if self.state is not None:
                    ref = f"{act.allocation.name}/{len(self.opened)}"
                    self.there[ref] = Seen(act.allocation.name, ref, self.state, why="Resources")
            else:
                self.closed.append((now, act.ref))
                if not self.deaf:
                    self.there[act.ref] = replace(self.there[act.ref], state=ENDED)
        return acts


def run(engine: Engine, wanted: Iterable[Allocation], seconds: range) -> None:
    for second in seconds:
        engine.tick(float(second), wanted)


def test_what_is_wanted_is_opened_once_and_what_is_not_wanted_is_closed_once() -> None:
    engine, wanted = Engine(), [allocation("a"), allocation("b")]
    run(engine, wanted, range(5))
    run(engine, wanted[:1], range(5, 20))
    assert [name for _, name in engine.opened] == ["a", "b"]
    assert engine.closed == [(5.0, "b/2")]


def test_an_engine_that_does_not_answer_changes_nothing() -> None:
    engine, wanted = Engine(state=WAITING), [allocation("a", patience=10.0)]
    engine.tick(0.0, wanted)
    engine.tick(1.0, wanted)
    memory = engine.memory
    assert engine.tick(1000.0, [], answers=False) == []
    assert engine.memory is memory


def test_a_refused_allocation_is_tried_again_after_pauses_that_double() -> None:
    engine = Engine(state=None)
    run(engine, [allocation("a")], range(1000))
    times = [at for at, _ in engine.opened]
    assert times[:6] == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0]
    assert max(b - a for a, b in itertools.pairwise(times)) == LONGEST_PAUSE


def test_an_allocation_that_was_up_for_a_minute_is_opened_again_at_once() -> None:
    engine, wanted = Engine(state=None), [allocation("a")]
    run(engine, wanted, range(100))
    engine.state = UP
    run(engine, wanted, range(100, 150))
    engine.heard["a"] = last = engine.opened[-1][0] + 1 + STABLE
    engine.tick(last, wanted)
    engine.there.clear()
    engine.tick(last + 1, wanted)
    assert engine.opened[-1] == (last + 1, "a")


def test_an_allocation_left_by_an_earlier_control_plane_is_taken_over() -> None:
    engine = Engine(there={"7": Seen("a", "7", UP)})
    assert engine.tick(0.0, [allocation("a")]) == []


def test_of_two_open_allocations_of_one_name_the_one_that_is_up_stays() -> None:
    engine = Engine(there={"7": Seen("a", "7", WAITING), "8": Seen("a", "8", UP)})
    assert [act.ref for act in engine.tick(0.0, [allocation("a")]) if isinstance(act, Close)] == ["7"]


def test_a_lost_allocation_is_opened_again_and_one_that_is_not_wanted_is_closed() -> None:
    engine = Engine(there={"7": Seen("a", "7", LOST), "8": Seen("b", "8", LOST)})
    acts = engine.tick(0.0, [allocation("a")])
    assert [type(act) for act in acts] == [Close, Open]
    assert isinstance(acts[0], Close)
    assert acts[0].name == "b"


def test_a_group_is_withdrawn_whole_when_one_part_has_waited_too_long() -> None:
    engine = Engine(state=WAITING)
    wanted = [allocation(name, patience=10.0, group="job-1") for name in "ab"] + [allocation("c")]
    run(engine, wanted, range(10))
    engine.there["a/1"] = replace(engine.there["a/1"], state=UP)
    engine.heard["a"] = 9.0
    acts = [act for second in (10.0, 11.0) for act in engine.tick(second, wanted)]
    closes = {act.name: act.why for act in acts if isinstance(act, Close)}
    assert closes == {"a": "b waited for 10 s (Resources)", "b": "it waited for 10 s (Resources)"}


def test_a_withdrawn_allocation_is_opened_again_only_after_a_pause() -> None:
    engine = Engine(state=WAITING)
    run(engine, [allocation("a", patience=5.0)], range(100))
    gaps = [at - max(done for done, _ in engine.closed if done <= at) for at, _ in engine.opened[1:]]
    assert gaps == sorted(gaps)
    assert gaps[0] >= 1.0
    assert gaps[-1] > gaps[0]


def test_an_allocation_whose_agent_stays_silent_is_closed_and_opened_again() -> None:
    engine, wanted = Engine(), [allocation("a")]
    run(engine, wanted, range(int(SILENCE) + 10))
    assert engine.closed == [(SILENCE + 1, "a/1")]
    assert [name for _, name in engine.opened] == ["a", "a"]


def test_an_agent_that_reports_keeps_its_allocation() -> None:
    engine, wanted = Engine(), [allocation("a")]
    for second in range(500):
        engine.heard["a"] = second - 5.0
        engine.tick(float(second), wanted)
    assert not engine.closed


def test_closing_is_repeated_after_pauses_while_it_has_no_effect() -> None:
    engine = Engine(there={"7": Seen("a", "7", UP)}, deaf=True)
    run(engine, [], range(100))
    assert [at for at, _ in engine.closed] == [0.0, 1.0, 3.0, 7.0, 15.0, 31.0, 63.0]


NAMES = st.sampled_from("abcd")
SEEN = st.lists(st.builds(Seen, NAMES, st.sampled_from("123456"), st.sampled_from(AllocationState)), max_size=8).map(
    lambda seen: list({one.ref: one for one in seen}.values())
)
WANTED = st.lists(
    st.builds(
        allocation, NAMES, patience=st.sampled_from((None, 1.0, 5.0)), group=st.sampled_from(("", "g"))
    ),
    max_size=4,
    unique_by=lambda one: one.name,
)  # fmt: skip
HISTORY = st.lists(st.tuples(WANTED, st.none() | SEEN, st.floats(0.0, 100.0)), min_size=1, max_size=6)


@given(HISTORY)
def test_calling_it_again_at_the_same_time_does_nothing(
    history: list[tuple[list[Allocation], list[Seen], float]],
) -> None:
    now, memory = 0.0, Memory()
    for wanted, seen, pause in history:
        now += pause
        acts, memory = reconcile(wanted, seen, {}, now, memory)
        again, after = reconcile(wanted, seen, {}, now, memory)
        assert again == []
        assert after == memory
        names = [act.allocation.name for act in acts if isinstance(act, Open)]
        present = {one.name for one in seen or () if one.state.open}
        assert not present.intersection(names)
        assert len(names) == len(set(names))


def test_a_thousand_allocations_take_at_most_10_ms() -> None:
    wanted = [allocation(str(n)) for n in range(1000)]
    seen = [Seen(str(n), f"ref-{n}", UP) for n in range(1000)]
    heard = {str(n): 0.0 for n in range(1000)}
    _, memory = reconcile(wanted, seen, heard, 0.0)
    spent = []
    for second in range(20):
        began = time.process_time()
        _, memory = reconcile(wanted, seen, heard, float(second), memory)
        spent.append(time.process_time() - began)
    assert min(spent) <= 0.010
