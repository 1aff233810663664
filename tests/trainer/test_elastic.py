"""Elastic data-parallel training with real workers: processes of this machine that meet over gloo."""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from shoal.core.errors import InputError  # noqa: E402
from shoal.research.trials.elastic_job import (  # noqa: E402
    CountingModel,
    TrialJob,
    TrialTask,
    run_trial,
    train_fixed,
    trial_job,
    violations,
)
from shoal.trainer.elastic.group import WorkerConfig, connect_to  # noqa: E402
from shoal.trainer.elastic.membership import Stranded  # noqa: E402
from shoal.trainer.elastic.orders import Order, orders_from  # noqa: E402
from shoal.trainer.elastic.state import ReduceBuffer, pack, unpack  # noqa: E402
from shoal.trainer.elastic.store import open_store  # noqa: E402
from shoal.trainer.elastic.training import Elastic, ElasticStep, TrainingPlan  # noqa: E402
from shoal.trainer.environment import RankEnvironment  # noqa: E402
from shoal.trainer.samples import Cursor  # noqa: E402
from shoal.trainer.session import Session, Stopped  # noqa: E402

_PATIENCE_SECONDS = 120.0
_EXAMPLE = Path(__file__).resolve().parents[2] / "docs/examples/elastic_training.py"
_ALONE = TrialTask(samples=24, epochs=2, batch=8, seconds_per_pass=0.0)


class Said:
    """Orders given in this process."""

    def __init__(self, *orders: Order) -> None:
        self.orders = list(orders)

    def latest(self) -> Order | None:
        return self.orders[-1] if self.orders else None


@pytest.fixture
def store() -> Any:
    return open_store("0")


def _worker(
    store: Any, number: int, orders: Said, *, patience: float = 60.0, **more: Any
) -> tuple[Elastic, CountingModel]:
    model = CountingModel(_ALONE, seed=number)
    seat = WorkerConfig(number, partial(connect_to, "127.0.0.1", store.port), patience=patience)
    plan = _ALONE.plan()
    return Elastic(model.module, model.optimizer(_ALONE), model.loss, plan, seat=seat, orders=orders, **more), model


def _lines(done: TrialJob, worker: int) -> list[dict[str, Any]]:
    return [line for line in done.lines(worker) if "number" in line]


def _until(done: TrialJob, worker: int, condition: Any) -> None:
    waited = threading.Event()
    for _ in range(int(_PATIENCE_SECONDS / 0.01)):
        lines = _lines(done, worker)
        if lines and condition(lines[-1]):
            return
        waited.wait(0.01)
    pytest.fail(f"worker {worker} did not come so far in {_PATIENCE_SECONDS} s: {_lines(done, worker)[-1:]}")


# ── a job of several workers ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", [1002, 1005, 1051])
def test_whatever_is_ordered_and_whoever_is_killed_training_is_that_of_an_undisturbed_run(seed: int) -> None:
    story, found = run_trial(seed, TrialTask(epochs=6))
    assert story
    assert found == []


def test_a_job_grows_while_it_trains_and_shrinks_to_the_group_it_had() -> None:
    with trial_job(TrialTask(epochs=40)) as grown:
        grown.order(grown.start(2, founders=True))
        _until(grown, 0, lambda line: line["number"] >= 3)
        grown.order((0, 1, 2, 3))
        ordered_at = _lines(grown, 0)[-1]["number"]
        # Workers 2 and 3 are not even started yet: nobody waits for them.
        _until(grown, 0, lambda line: line["number"] >= ordered_at + 20)
        grown.start(2)
        _until(grown, 0, lambda line: line["world"] == 4)
        grown.order((0, 1))
        _until(grown, 0, lambda line: line["world"] == 2 and line["generation"] == 3)
        assert grown.wait(_PATIENCE_SECONDS)
        assert violations(grown, in_time=True) == []
        assert [process.exitcode for process in grown.workers.values()] == [0, 0, 0, 0]
        for survivor in (0, 1):
            changes = [line["switch"] for line in _lines(grown, survivor) if line["switch"]]
            assert [(change["before"], change["after"]) for change in changes] == [(2, 4), (4, 2)]
        last = [line["number"] for line in _lines(grown, 2)][-1]
        assert _lines(grown, 3)[-1]["number"] == last < len(train_fixed(grown.task).losses) - 1


def test_the_check_of_a_trial_notices_what_it_is_there_for() -> None:
    task = TrialTask(samples=16, epochs=1, batch=8, seconds_per_pass=0.0)
    with trial_job(task) as done:
        done.order(done.start(2, founders=True))
        assert done.wait(_PATIENCE_SECONDS)
        assert violations(done, in_time=True) == []
        log = done.folder / "0.jsonl"
        first, second, last = map(json.loads, log.read_text().splitlines())

        def write(*lines: dict[str, Any]) -> None:
            log.write_text("".join(json.dumps(line) + "\n" for line in lines))

        write({**first, "loss": first["loss"] * 1.01}, second, last)
        assert [fault.split(":")[0] for fault in violations(done, in_time=True)] == ["step 0"]
        write(first, {**second, "digest": "another"}, last)
        assert violations(done, in_time=True) == ["replicas differ after step 1"]
        write(first, second, {**last, "uses": [0.0, *last["uses"][1:]]})
        assert "uses of samples" in violations(done, in_time=True)[0]
        assert violations(done, in_time=False)[0].startswith("workers were still running")


# ── one worker ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_worker_alone_trains_as_a_plain_loop_does(store: Any) -> None:
    elastic, model = _worker(store, 0, Said(Order(1, (0,))))
    losses = [step.loss for step in elastic.steps()]
    fixed = train_fixed(_ALONE)
    assert elastic.complete
    assert losses == pytest.approx(fixed.losses, rel=1e-5)
    assert model.uses.tolist() == pytest.approx(fixed.uses, abs=1e-4)


def test_an_order_that_keeps_no_training_worker_is_not_followed(store: Any) -> None:
    orders = Said(Order(1, (0,)))
    elastic, _ = _worker(store, 0, orders)
    done: list[ElasticStep] = []
    for step in elastic.steps():
        done.append(step)
        if step.number == 1:
            orders.orders.append(Order(2, (7,)))
    assert elastic.complete
    assert {step.generation for step in done} == {1}


def test_an_order_that_names_the_same_workers_changes_nothing_but_the_number(store: Any) -> None:
    orders = Said(Order(1, (0,)))
    elastic, _ = _worker(store, 0, orders)
    done: list[ElasticStep] = []
    for step in elastic.steps():
        done.append(step)
        orders.orders.append(Order(step.number + 2, (0,)))
    assert done[-1].generation == len(done) - 1
    assert all(step.switch is None for step in done)


def test_a_worker_that_no_order_names_waits_no_longer_than_its_patience(store: Any) -> None:
    elastic, _ = _worker(store, 3, Said(), patience=0.2)
    with pytest.raises(Stranded, match="worker 3"):
        list(elastic.steps())


def test_a_newcomer_does_not_begin_anew_what_others_had_begun(store: Any) -> None:
    first, _ = _worker(store, 0, Said(Order(1, (0,))))
    next(iter(first.steps()))
    loaded: dict[str, Any] = {"began": Cursor(0, 8), "steps_done": 1}
    for more in ({}, loaded):
        newcomer, _ = _worker(store, 1, Said(Order(2, (1,))), **more)
        with pytest.raises(Stranded, match="checkpoint"):
            list(newcomer.steps())


def test_a_job_taken_up_from_a_checkpoint_trains_what_was_left(store: Any) -> None:
    elastic, _ = _worker(store, 0, Said(Order(1, (0,))), began=Cursor(1, 8), steps_done=4)
    assert [(step.number, step.began) for step in elastic.steps()] == [(4, Cursor(1, 8)), (5, Cursor(1, 16))]


@pytest.fixture
def own_signals() -> Iterator[None]:
    """Leave no session's handler behind."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.usefixtures("own_signals")
def test_a_stopped_job_saves_and_resumes_from_there_with_another_number_of_workers(store: Any, tmp_path: Path) -> None:
    place = RankEnvironment(job="a", folder=tmp_path, progress=tmp_path / "progress", lease=tmp_path / "lease")
    first, _ = _worker(store, 0, Said(Order(1, (0,))), session=Session(place))
    steps: list[ElasticStep] = []

    def train_until_told() -> None:
        for step in first.steps():
            steps.append(step)
            if step.number == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Stopped):
        train_until_told()
    assert len(steps) == 3  # the others of a group hear of it with the next step
    done, saved, *_ = (tmp_path / "progress").read_text().split()
    assert float(done) == float(saved) == 3 * _ALONE.batch

    again, both = open_store("0"), Said(Order(1, (0, 1)))
    workers = [_worker(again, number, both, session=Session(place)) for number in (0, 1)]
    beside = threading.Thread(target=lambda: list(workers[1][0].steps()))
    beside.start()
    steps += workers[0][0].steps()
    beside.join()
    fixed = train_fixed(_ALONE)
    assert [step.number for step in steps] == list(range(len(fixed.losses)))
    assert [step.loss for step in steps] == pytest.approx(fixed.losses, rel=1e-3, abs=1e-5)
    for _, model in workers:
        assert model.uses.tolist() == pytest.approx(fixed.uses, abs=1e-2)


def test_no_pass_is_larger_than_memory_allows(store: Any) -> None:
    sizes = []
    model = CountingModel(_ALONE, seed=0)

    def loss_on(indices: Any) -> Any:
        sizes.append(len(indices))
        return model.loss(indices)

    plan = TrainingPlan(_ALONE.plan().samples, epochs=1, batch=24, most_local=7)
    seat = WorkerConfig(0, partial(connect_to, "127.0.0.1", store.port))
    elastic = Elastic(model.module, model.optimizer(_ALONE), loss_on, plan, seat=seat, orders=Said(Order(1, (0,))))
    assert len(list(elastic.steps())) == 1
    assert sizes == [7, 6, 6, 6, 6]  # the first is the rehearsal


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return int(door.getsockname()[1])


def test_without_an_agent_the_ranks_of_a_gang_train_together() -> None:
    environ = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    models = [CountingModel(_ALONE, seed=rank) for rank in (0, 1)]
    losses: dict[int, list[float]] = {}

    def train(rank: int) -> None:
        model = models[rank]
        told = {**environ, "RANK": str(rank)}
        seat, orders = WorkerConfig.from_environment(told), orders_from(told)
        seat = replace(seat, patience=60.0)
        elastic = Elastic(model.module, model.optimizer(_ALONE), model.loss, _ALONE.plan(), seat=seat, orders=orders)
        losses[rank] = [step.loss for step in elastic.steps()]

    ranks = [threading.Thread(target=train, args=(rank,)) for rank in (0, 1)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(_PATIENCE_SECONDS)
    assert losses[0] == losses[1] == pytest.approx(train_fixed(_ALONE).losses, rel=1e-5)


def test_the_example_of_the_page_runs_unmanaged(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(_EXAMPLE))
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == "trained"
    assert all("1 worker" in line for line in lines[:-1])


# ── its parts ────────────────────────────────────────────────────────────────────────────────────────────────────


class Running:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.mkdir, ("unpickled",)


@pytest.mark.parametrize("evil", [Running(), {"state": [Running()]}, print, Path("x"), torch.nn.Linear])
def test_a_state_from_a_peer_runs_no_code(evil: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="is no plain value, collection or tensor"):
        unpack(*pack(evil))
    assert not (tmp_path / "unpickled").exists()


def test_a_state_is_the_same_after_it_was_packed_and_unpacked() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "half": torch.ones(3, dtype=torch.bfloat16),
    }
    back = unpack(*pack(state))
    assert back["optimizer"]["param_groups"] == state["optimizer"]["param_groups"]
    for name, value in state["model"].items():
        assert torch.equal(back["model"][name], value)
        assert back["model"][name].dtype == value.dtype
    assert torch.equal(back["half"], state["half"])


def test_running_statistics_are_shared_by_weight_and_put_back_when_a_step_fails() -> None:
    model = nn.BatchNorm1d(2)
    ledger = ReduceBuffer(model)
    ledger.begin()
    model(torch.tensor([[0.0, 4.0], [2.0, 4.0]])).sum().backward()
    assert model.running_mean is not None
    seen = model.running_mean.tolist()
    whole = ledger.enter(torch.tensor(1.5), share=0.25, ready=9, rank=1, world=2)
    assert whole[4:6].tolist() == pytest.approx([0.25 * mean for mean in seen])
    assert whole[-3:].tolist() == [1.5, 0.0, 9.0]
    ledger.undo()
    assert model.running_mean.tolist() == [0.0, 0.0]


def test_the_ledger_grows_with_the_number_of_ranks() -> None:
    model = nn.Linear(1, 1)
    ledger = ReduceBuffer(model)
    ledger.begin()
    model(torch.ones(1, 1)).sum().backward()
    ledger.enter(torch.tensor(0.5), share=0.01, ready=3, rank=99, world=100)
    loss, words = ledger.settle(100)
    assert (loss, words[99], sum(words)) == (0.5, 3, 3)
    assert all(parameter.grad is not None and parameter.grad.item() == 1.0 for parameter in model.parameters())


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"SHOAL_STORE": "host", "SHOAL_WORKER": "1"}, "SHOAL_STORE"),
        ({"SHOAL_STORE": "host:1"}, "SHOAL_WORKER"),
        ({"SHOAL_STORE": "host:1", "SHOAL_WORKER": "one"}, "SHOAL_WORKER"),
        ({"WORLD_SIZE": "2", "MASTER_PORT": "1"}, "MASTER_ADDR"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "host"}, "MASTER_PORT"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE"),
    ],
)
def test_a_variable_that_is_missing_or_wrong_is_named(environ: dict[str, str], named: str) -> None:
    with pytest.raises(InputError) as refused:
        WorkerConfig.from_environment({"RANK": "0", **environ})
    assert refused.value.field == named


def test_a_worker_finds_the_store_its_agent_names(store: Any) -> None:
    seat = WorkerConfig.from_environment({"SHOAL_STORE": f"127.0.0.1:{store.port}", "SHOAL_WORKER": "4"})
    seat.connect().set("said", "heard")
    assert (seat.worker, connect_to("127.0.0.1", store.port).get("said")) == (4, b"heard")


def test_the_store_is_a_process_that_ends_when_it_is_asked_to(store: Any) -> None:
    command = [sys.executable, "-m", "shoal.trainer.elastic.store"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        other = connect_to("127.0.0.1", int(process.stdout.readline()))
        other.set("said", "heard")
        assert other.get("said") == b"heard"
        process.send_signal(signal.SIGTERM)
        assert process.wait(_PATIENCE_SECONDS) == 0
    with pytest.raises(InputError, match="port"):
        open_store(str(store.port))
    with pytest.raises(InputError, match="port"):
        open_store("seventy")


def test_a_store_listens_on_its_own_address_alone() -> None:
    store = open_store("0", "127.0.0.1")
    connect_to("127.0.0.1", store.port).set("said", "heard")
    with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.2", store.port), timeout=10):
        pass
    with pytest.raises(InputError, match=r"cannot listen on 192\.0\.2\.1 there"):
        open_store("0", "192.0.2.1")
    store.close()


def test_a_store_serves_only_workers_that_know_its_secret() -> None:
    store = open_store("0", secret="of this job")
    environ = {"SHOAL_STORE": f"127.0.0.1:{store.port}", "SHOAL_WORKER": "1", "SHOAL_STORE_SECRET": "of this job"}
    worker = WorkerConfig.from_environment(environ).connect()
    worker.set("said", "heard")
    for secret in ("", "of another"):
        with pytest.raises(InputError, match="SHOAL_STORE_SECRET"):
            connect_to("127.0.0.1", store.port, secret)
    for sent in (b"", b"\x00" * 64, (b"GET / HTTP/1.1\r\n\r\n" * 4)[:64]):
        with socket.create_connection(("127.0.0.1", store.port), timeout=10) as stranger:
            greeting = stranger.recv(4096)
            stranger.sendall(sent)
            stranger.shutdown(socket.SHUT_WR)
            assert (len(greeting), stranger.recv(4096)) == (32, b"")
    assert worker.get("said") == b"heard"
    store.close()


def test_a_worker_sends_its_store_nothing_until_that_has_proved_the_secret() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        heard: list[bytes] = []

        def pretend() -> None:
            connection, _ = other.accept()
            with connection:
                connection.sendall(b"n" * 32)
                heard.append(connection.recv(4096))
                connection.sendall(b"p" * 32)
                heard.append(connection.recv(4096))

        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(InputError, match="another process listens in its place"):
            connect_to("127.0.0.1", other.getsockname()[1], "of this job")
        thread.join(10)
    assert [len(part) for part in heard] == [64, 0]


def test_a_store_keeps_what_torch_expects_of_one(store: Any) -> None:
    mine, other = (connect_to("127.0.0.1", store.port) for _ in range(2))
    assert (mine.add("n", 2), other.add("n", -5), other.get("n")) == (2, -3, b"-3")
    assert mine.compare_set("fate", "expected", "mine") == b"expected"
    assert not mine.check(["fate"])
    assert (mine.compare_set("fate", "", "mine"), other.compare_set("fate", "", "other")) == (b"mine", b"mine")
    assert other.compare_set("fate", "mine", "other") == b"other"
    late = threading.Timer(0.05, lambda: other.set("late", b"\x00\xff"))
    late.start()
    assert mine.get("late") == b"\x00\xff"
    late.join()
    with pytest.raises(RuntimeError, match="did not get never in time"):
        mine.wait(["never"], timedelta(seconds=0.01))
    assert (mine.num_keys(), mine.delete_key("late"), mine.delete_key("late")) == (3, True, False)
