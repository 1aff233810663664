"""Gandiva: time slices, packing by trial and error, migration; and the sharing of GPUs underneath it."""

from dataclasses import dataclass

import numpy as np
import pytest

from shoal.core.commands import Start
from shoal.core.decision import Decision, Verdicts
from shoal.core.events import JobCrashed
from shoal.core.reasons import FITS, IN_TURN, NO_ROOM
from shoal.core.snapshot import Snapshot
from shoal.policy.classic.gandiva import Gandiva
from shoal.policy.classic.trial_pairs import TrialPairsCarry
from shoal.sim.faults import Faults, JobFault, NodeFault
from shoal.testing.builders import Cycle, SimulationLog, job, simulate, snapshot
from shoal.testing.conformance import check_decision, check_seats
from shoal.workload.schema import Job


def check_pairs(cycle: Cycle) -> None:
    """The room adds up, and who shares shares mutually, on the same seats."""
    moment, columns = cycle.snapshot, cycle.snapshot.columns
    check_seats(moment)
    for i in range(len(columns)):
        if columns.partner[i] >= 0:
            j = moment.position_of(int(columns.partner[i]))
            assert columns.partner[j] == columns.rows[i]
            assert columns.seats[j] == columns.seats[i] >= 0


def shared(run: SimulationLog) -> list[tuple[float, str, str]]:
    """When who was started beside whom."""
    names = [row.id for row in run.jobs]
    starts = [(at, c) for at, c in run.commands if isinstance(c, Start) and c.partner is not None]
    return [(at, names[c.job], names[c.partner]) for at, c in starts if c.partner is not None]


def training(id: str, model: str, batch_size: int, work: float) -> Job:
    return job(id, 0, 1, model=model, batch_size=batch_size, work=work)


def test_a_good_pair_is_kept() -> None:
    # On one V100 ResNet-50 (249.19 samples/s alone) keeps 0.899 beside ResNet-18 (517.65), which keeps 0.804. They
    # start together on trial; at 60 they are found to make 1.703 times the progress and stay, past the quantum at
    # 600. The first has work for 1,000 s of sharing, the second for 500 s alone after that.
    slow, fast = 249.19 * 0.899, 517.65 * 0.804
    rows = [
        training("slow", "ResNet-50", 32, 1000 * slow),
        training("fast", "ResNet-18", 16, 1000 * fast + 500 * 517.65),
    ]
    run = simulate(Gandiva(space_sharing=True), rows, "v100:1x1", watch=check_pairs)
    assert run.completed == {"slow": pytest.approx(1000), "fast": pytest.approx(1500)}
    assert run.starts == {"slow": 1, "fast": 1}
    told = [sentence for _, sentence in run.story("slow")]
    assert told == [
        "shares GPUs with fast on trial until t = 60 s",
        "shares GPUs with fast: together they make 1.703 times the progress",
    ]


def test_a_bad_pair_is_undone_and_not_tried_again() -> None:
    # Two jobs that can only take turns each do 30 of their 300 in the first 60 s, which is worth 1.0: the guest
    # leaves. The host ends at 60 + 270 = 330, the guest's other 270 s take it to 600.
    run = simulate(
        Gandiva(space_sharing=True), [job("a", 0, 1, 300), job("b", 0, 1, 300)], "gpu:1x1", watch=check_pairs
    )
    assert run.completed == {"a": pytest.approx(330), "b": pytest.approx(600)}
    carried = run.cycles[2].snapshot.carry
    assert isinstance(carried, TrialPairsCarry)
    assert carried.barred == {(0, 1)}
    longer = simulate(
        Gandiva(space_sharing=True), [job("a", 0, 1, 3000), job("b", 0, 1, 3000)], "gpu:1x1", watch=check_pairs
    )
    assert shared(longer) == [(0.0, "a", "b"), (0.0, "b", "a")]


def test_two_that_do_not_fit_together_go_on_apart() -> None:
    # ResNet-50 at batch 32 and at batch 128 do not fit on one GPU: the second to start crashes, through no fault of
    # its own, and waits; the pair is not tried again, in as many turns as they take.
    rows = [training("small", "ResNet-50", 32, 249.19 * 5000), training("large", "ResNet-50", 128, 319.59 * 5000)]
    run = simulate(Gandiva(space_sharing=True), rows, "v100:1x1", watch=check_pairs)
    assert set(run.completed) == {"small", "large"}
    crashes = [e for e in run.events if isinstance(e, JobCrashed)]
    assert [(e.at, e.blamed) for e in crashes] == [(0.0, False)]
    assert max(run.completed.values()) == pytest.approx(10_000, rel=0.02)


def test_when_all_jobs_fit_none_share() -> None:
    rows = [job("a", 0, 1, 100), job("b", 0, 1, 100), job("c", 50, 1, 100)]
    run = simulate(Gandiva(space_sharing=True), rows, "gpu:1x3", watch=check_pairs)
    assert run.completed == {"a": 100, "b": 100, "c": 150}
    assert not shared(run)


def test_a_pair_parts_when_there_is_room_again() -> None:
    # Three on two GPUs: one of them is joined. When the short one is done everyone fits, and the pair parts.
    slow = 249.19
    rows = [training(f"j{i}", "ResNet-50", 32, slow * (900 if i == 0 else 5000)) for i in range(3)]
    run = simulate(Gandiva(space_sharing=True), rows, "v100:1x2", watch=check_pairs)
    end = run.completed["j0"]
    after = [c for c in run.cycles if c.now > end]
    assert all((c.snapshot.columns.partner < 0).all() for c in after)
    assert max(run.completed.values()) < end + 5001


def test_time_slices_without_space_sharing() -> None:
    rows = [job("a", 0, 1, 100), job("b", 0, 1, 100)]
    run = simulate(Gandiva(quantum=60, space_sharing=False, trial=10), rows, "gpu:1x1")
    assert run.completed == {"a": 160, "b": 200}
    assert run.cycles[0].sentence("b") == "waits: needs 1 GPU; 0 left when its turn comes"


def test_a_job_migrates_to_a_faster_kind_that_comes_free() -> None:
    # The V100 is free at 100. On the K80, seven times slower, the other has then done 100 of 7,100 s.
    work = 281.27 * 1000
    rows = [
        job("short", 0, 1, model="ResNet-50", batch_size=64, work=281.27 * 100, kinds=("v100",)),
        job("long", 0, 1, model="ResNet-50", batch_size=64, work=work),
    ]
    run = simulate(Gandiva(space_sharing=True), rows, "v100:1x1,k80:1x1")
    assert run.completed["long"] == pytest.approx(100 + (work - 100 * 39.618) / 281.27, rel=1e-3)
    stayed = simulate(Gandiva(space_sharing=True, migrate=False), rows, "v100:1x1,k80:1x1")
    assert stayed.completed["long"] == pytest.approx(work / 39.618, rel=1e-3)


def test_a_carry_of_jobs_long_gone_or_of_another_policy_does_no_harm() -> None:
    rows = [job(f"j{i}", 0, 1, 500) for i in range(5)]
    for carry in (None, 7.0, "nonsense", TrialPairsCarry(3, (), frozenset({(90, 91)}))):
        check_decision(Gandiva(space_sharing=True), snapshot(rows, "gpu:1x2", held={"j0": 1}, carry=carry))


@pytest.mark.parametrize(("option", "value"), [("quantum", 0.0), ("trial", 0.0), ("trial", 1e9)])
def test_options_must_make_sense(option: str, value: float) -> None:
    with pytest.raises(ValueError, match=option):
        Gandiva(**{option: value})  # type: ignore[arg-type]


@dataclass(frozen=True)
class RandomSharing:
    """Pairs, splits, moves and stops at random, within capacity: whatever any sharing policy could ask for."""

    def decide(self, moment: Snapshot) -> Decision:
        chance, columns = np.random.default_rng([moment.seed, moment.cycle]), moment.columns
        count, free = len(columns), list(moment.cluster.capacity)
        gpus, partners = np.zeros(count, dtype=np.int32), np.full(count, -1, dtype=np.int32)
        kinds = np.full(count, -1, dtype=np.int8)
        for i in chance.permutation(count).tolist():
            want = int(columns.gpus[i])
            stays = columns.held[i] and chance.random() < 0.7
            k = int(columns.kind[i]) if stays else int(chance.integers(len(free)))
            if gpus[i] or chance.random() < 0.2 or free[k] < want:
                continue
            free[k] -= want
            gpus[i], kinds[i] = want, k
            alike = np.flatnonzero((gpus == 0) & (columns.gpus == want))
            if len(alike) and chance.random() < 0.6:
                j = int(chance.choice(alike))
                gpus[j], kinds[j], partners[i], partners[j] = want, k, j, i
        codes = np.where(gpus > 0, FITS.code, NO_ROOM.code)
        numbers = {FITS: (1.0, 1.0), NO_ROOM: (1.0, 0.0)}
        verdicts = Verdicts(moment, gpus=gpus, codes=codes, numbers=numbers, kinds=kinds, partners=partners)
        return Decision(verdicts, moment.now + float(chance.integers(5, 60)))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("placement", ["packed", "any"])
def test_whatever_is_shared_the_room_adds_up_and_every_grant_is_seated(seed: int, placement: str) -> None:
    chance = np.random.default_rng(seed)
    sizes, lengths, arrivals = (
        chance.choice([1, 1, 2, 3], 12),
        chance.integers(20, 400, 12),
        chance.integers(0, 300, 12),
    )
    rows = [job(f"j{i}", float(arrivals[i]), int(sizes[i]), float(lengths[i])) for i in range(12)]
    lost = [NodeFault(float(chance.integers(0, 600)), int(chance.integers(0, 4)), 50.0) for _ in range(3)]
    crashed = [JobFault(float(chance.integers(0, 600)), int(chance.integers(0, 12))) for _ in range(2)]

    def watch(cycle: Cycle) -> None:
        check_pairs(cycle)
        asked = Verdicts.of(cycle.snapshot, cycle.judgement.decision.verdicts)
        assert np.array_equal(asked.gpus, cycle.judgement.verdicts.gpus), "a grant within capacity was not seated"

    run = simulate(
        RandomSharing(),
        rows,
        "a:2x3,b:2x4",
        placement=placement,  # type: ignore[arg-type]
        restart_cost=3.0 * (seed % 2),
        faults=Faults(script=(*lost, *crashed), checkpoint_every=10.0),
        seed=seed,
        watch=watch,
    )
    check_seats(run.state.freeze())
    assert set(run.completed) == {row.id for row in rows}


def test_sharing_is_settled_in_work_done() -> None:
    # Half the speed beside another, full speed alone: a and b share one GPU until a's 50 is done at 100; b has 50 of
    # its 150 by then and ends at 200. The scheduler's own account of b's progress agrees with the world's.
    @dataclass(frozen=True)
    class Together:
        def decide(self, moment: Snapshot) -> Decision:
            count = len(moment.columns)
            partners = (
                np.arange(count - 1, -1, -1, dtype=np.int32) if count == 2 else np.full(count, -1, dtype=np.int32)
            )
            gpus, codes = np.ones(count, dtype=np.int32), np.zeros(count, dtype=np.uint8)
            story = {IN_TURN: ("age", 0.0, 0.0)}
            return Decision(Verdicts(moment, gpus=gpus, codes=codes, numbers=story, partners=partners))

    run = simulate(Together(), [job("a", 0, 1, 50), job("b", 0, 1, 150)], "gpu:1x1", watch=check_pairs)
    assert run.completed == {"a": pytest.approx(100), "b": pytest.approx(200)}
    alone = run.cycles[1].snapshot
    assert alone.columns.done.tolist() == [pytest.approx(50)]
    assert alone.columns.rate.tolist() == [pytest.approx(1.0)]
    assert alone.columns.partner.tolist() == [-1]
