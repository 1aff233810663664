"""One rank's training in this process: accumulation, measured noise, changing batches, checkpoints that are refused."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler  # noqa: E402

from shoal.core.batch_limits import BatchLimits  # noqa: E402
from shoal.core.errors import InputError  # noqa: E402
from shoal.trainer import Adaptation, Scripted, Session, Stopped, Training  # noqa: E402
from shoal.trainer.environment import RankEnvironment  # noqa: E402
from shoal.trainer.learning_rate import linear  # noqa: E402

SIZE = 64


@pytest.fixture(autouse=True)
def _handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def dataset() -> Any:
    chance = torch.Generator().manual_seed(1)
    inputs = torch.randn(SIZE, 6, generator=chance)
    return TensorDataset(inputs, inputs @ torch.ones(6) + torch.randn(SIZE, generator=chance))


class Script:
    """An ordinary loop: a linear model, SGD, the mean squared error; what it saw is kept."""

    def __init__(
        self, folder: Path | None, batch: int = 8, *, place: RankEnvironment | None = None, **options: Any
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(6, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.loader = DataLoader(dataset(), batch_size=batch, shuffle=True)
        session = Session(place or RankEnvironment())
        self.run = Training(self.model, self.optimizer, folder=folder, session=session, **options)
        self.lengths: list[int] = []
        self.losses: list[float] = []

    def train(self, epochs: int, *, warned_after: int | None = None, late_clear: bool = False) -> "Script":
        for _ in self.run.epochs(epochs):
            for inputs, targets in self.run.batches(self.loader):
                if not late_clear:
                    self.optimizer.zero_grad()
                loss = ((self.model(inputs).squeeze(1) - targets) ** 2).mean()
                loss.backward()
                self.optimizer.step()
                if late_clear:
                    self.optimizer.zero_grad()
                self.lengths.append(len(targets))
                self.losses.append(loss.item())
                if len(self.losses) == warned_after:
                    signal.raise_signal(signal.SIGTERM)
        return self

    @property
    def weights(self) -> Any:
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])


def managed(folder: Path, **more: Any) -> RankEnvironment:
    return RankEnvironment("job", 1, folder=folder, progress=folder / "progress", **more)


def test_without_shoal_the_loop_is_the_scripts_own() -> None:
    script = Script(None)
    torch.manual_seed(3)
    script.train(2)
    torch.manual_seed(3)
    own = [len(targets) for _ in range(2) for _, targets in script.loader]
    assert script.lengths == own
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("late_clear", [False, True], ids=["cleared before", "cleared after"])
def test_passes_that_are_added_up_give_the_same_training(tmp_path: Path, late_clear: bool) -> None:
    whole = Script(tmp_path / "whole", batch=24).train(2, late_clear=late_clear)
    parts = Script(tmp_path / "parts", batch=24, most_local=5).train(2, late_clear=late_clear)
    assert max(parts.lengths) == 5
    assert sum(parts.lengths) == sum(whole.lengths) == 2 * SIZE
    assert torch.allclose(whole.weights, parts.weights, atol=1e-6)


def test_a_run_that_is_warned_saves_leaves_and_goes_on_where_it_was(tmp_path: Path) -> None:
    alone = Script(tmp_path / "alone").train(3)
    first = Script(None, place=managed(tmp_path))
    with pytest.raises(Stopped):
        first.train(3, warned_after=10)
    then = Script(None, place=managed(tmp_path)).train(3)
    assert first.losses + then.losses == alone.losses
    assert torch.equal(then.weights, alone.weights)


def test_a_run_that_is_done_is_done_when_it_is_started_again(tmp_path: Path) -> None:
    first = Script(None, place=managed(tmp_path)).train(2)
    again = Script(None, place=managed(tmp_path)).train(2)
    assert not again.losses
    assert torch.equal(again.weights, first.weights)


def test_a_finished_run_that_adapts_its_batch_ends_at_once_when_started_again_and_keeps_what_it_measured(
    tmp_path: Path,
) -> None:
    limits = {"batch": 0, "limits": BatchLimits(8, 32, 2, 16)}
    place, adapt = managed(tmp_path, **limits), Adaptation(tune_every=0.0)
    first = Script(None, place=place, adapt=adapt).train(2)
    again = Script(None, place=place, adapt=adapt).train(2)
    assert first.losses
    assert not again.losses
    longer = Script(None, place=place, adapt=adapt).train(3)
    assert SIZE <= sum(longer.lengths) < 2 * SIZE


def test_a_run_that_adapts_its_batch_can_save_before_its_first_batch(tmp_path: Path) -> None:
    adapt = Adaptation(limits=BatchLimits(8, 32, 2, 16))
    Script(tmp_path, adapt=adapt).run.save()
    assert sum(Script(tmp_path, adapt=adapt).train(1).lengths) >= SIZE


def test_without_epochs_the_script_of_a_run_that_adapts_its_batch_decides_when_it_ends(tmp_path: Path) -> None:
    script = Script(tmp_path, adapt=Adaptation(limits=BatchLimits(8, 32, 2, 16)))
    seen = [sum(len(inputs) for inputs, _ in script.run.batches(script.loader)) for _ in range(2)]
    assert seen == [SIZE, SIZE]


def test_no_epochs_are_no_training(tmp_path: Path) -> None:
    assert Script(tmp_path).train(0).losses == []


def test_a_checkpoint_asked_for_within_a_step_counts_that_step(tmp_path: Path) -> None:
    alone = Script(tmp_path / "alone").train(1)
    first = Script(tmp_path / "cut")
    for inputs, targets in first.run.batches(first.loader):
        first.optimizer.zero_grad()
        ((first.model(inputs).squeeze(1) - targets) ** 2).mean().backward()
        first.optimizer.step()
        first.lengths.append(len(targets))
        if len(first.lengths) == 3:
            first.run.save()
        if len(first.lengths) == 4:
            break
    then = Script(tmp_path / "cut").train(1)
    assert then.losses == alone.losses[3:]


def test_a_torn_checkpoint_is_refused_and_the_previous_used(tmp_path: Path) -> None:
    alone = Script(tmp_path / "alone").train(3)
    for after in (6, 5):
        with pytest.raises(Stopped):
            Script(None, place=managed(tmp_path)).train(3, warned_after=after)
    newest = max((tmp_path / "checkpoints").iterdir())
    state = newest / "state.pt"
    state.write_bytes(state.read_bytes()[:-100])
    then = Script(None, place=managed(tmp_path)).train(3)
    # Seven steps were saved first: a warning is heeded at the end of the step after it.
    assert then.losses == alone.losses[7:]


def test_a_checkpoint_of_another_model_is_not_taken(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        Script(None, place=managed(tmp_path)).train(3, warned_after=10)
    other = Script(None, place=managed(tmp_path))
    other.optimizer = torch.optim.Adam(other.model.parameters())
    other.run = Training(other.model, other.optimizer, session=Session(managed(tmp_path)))
    assert len(other.train(1).losses) == 8


def test_a_granted_batch_size_is_what_is_trained_with(tmp_path: Path) -> None:
    script = Script(None, place=managed(tmp_path, batch=16)).train(1)
    assert script.lengths == [8] * 8
    assert len({round(loss, 6) for loss in script.losses}) == 8


def test_a_scripted_batch_takes_its_learning_rate_with_it(tmp_path: Path) -> None:
    adapt = Adaptation(schedule=Scripted(((1, 32),)), learning_rate=linear)
    script = Script(tmp_path, most_local=64, adapt=adapt)
    rates = []
    script.optimizer.register_step_pre_hook(lambda *_: rates.append(script.optimizer.param_groups[0]["lr"]))
    script.train(2)
    assert script.lengths == [8] * 8 + [32] * 2
    assert rates == pytest.approx([0.01] * 8 + [0.04] * 2)
    assert script.optimizer.param_groups[0]["lr"] == 0.01


def test_a_change_the_script_announces_holds_from_the_next_step(tmp_path: Path) -> None:
    script = Script(tmp_path, most_local=64)
    for _ in script.run.epochs(1):
        for inputs, _ in script.run.batches(script.loader):
            script.lengths.append(len(inputs))
            script.run.set_batch_size(20)
    assert script.lengths == [8, 20, 20, 16]


def test_a_run_that_adapts_takes_larger_batches_where_gradients_are_noise_and_keeps_its_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As often as there are steps: how long one takes here must not decide how many are looked at.
    monkeypatch.setattr("shoal.trainer.torch.adaptation._MEASURING_SHARE", float("inf"))
    adapt = Adaptation(limits=BatchLimits(8, 32, 2, 16), tune_every=0.0)
    script = Script(tmp_path, adapt=adapt)
    # Nothing to learn: the model is where it should be, and targets are chance.
    script.loader = DataLoader(TensorDataset(torch.zeros(SIZE, 6), torch.randn(SIZE)), batch_size=8, shuffle=True)
    torch.nn.init.zeros_(script.model.bias)
    script.train(30)
    assert 8 < max(script.lengths) <= 16
    assert sum(script.lengths) >= 30 * SIZE


def _samples() -> Iterator[int]:
    yield from range(3)


class Stream(IterableDataset[int]):  # type: ignore[misc]
    def __iter__(self) -> Iterator[int]:
        return _samples()


@pytest.mark.parametrize(
    ("loader", "field"),
    [
        (lambda: [1, 2], "loader"),
        (lambda: DataLoader(Stream()), "loader.dataset"),
        (lambda: DataLoader(dataset(), sampler=WeightedRandomSampler([1.0], 1)), "loader.sampler"),
        (lambda: DataLoader(dataset(), batch_sampler=[[1]]), "loader.batch_sampler"),
    ],
)
def test_a_loader_whose_order_cannot_be_kept_is_refused(tmp_path: Path, loader: Any, field: str) -> None:
    script = Script(tmp_path)
    with pytest.raises(InputError) as refused:
        next(script.run.batches(loader()))
    assert refused.value.field == field
