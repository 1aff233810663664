"""``shoal search``: files that are refused, a search on a real cluster that bids for itself, and one interrupted."""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from shoal.cli import main
from shoal.cli import search as command
from shoal.core.errors import InputError
from shoal.core.events import AppBid, EventBatch, JobSubmitted
from shoal.hpo.halving import SuccessiveHalving
from shoal.hpo.live_search import Leg
from shoal.jobspec.search_file import read_search
from shoal.store.journal import JournalFile
from shoal.wire.client import Client
from shoal.wire.messages import Ahead, AppBidMessage, AppOffer, JobRow, NewToken, Submission, Submitted, TokenRow

if TYPE_CHECKING:
    from tests.hpo.conftest import Cluster

Shoal = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shoal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shoal:
    """Runs a command line in the test's folder; gives its exit code and what it wrote on stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHOAL_SERVER", "http://127.0.0.1:1")
    monkeypatch.setenv("SHOAL_TOKEN", "nobody")

    def run(*args: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(args)
        assert isinstance(ended.value.code, int)
        return ended.value.code, *capsys.readouterr()

    return run


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────────────────

GOOD = """\
scheduler: halving
parameters: [{rate: 0.1}, {rate: 1e-3}]
job:
  command: [train, "{rate}"]
"""


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


BAD = {
    "no search at all": ("- 1", "file", "must hold one search"),
    "not YAML": ("a: [", "file", "is not a search file: line 1"),
    "a field misspelt": (changed("scheduler", "sheduler"), "1: sheduler: 'halving'", "did you mean scheduler?"),
    "a field twice": (GOOD + "job: {}\n", "file", "line 5: job is given twice"),
    "no scheduler": (changed("scheduler: halving\n", ""), "scheduler: None", "is missing"),
    "an unknown scheduler": (changed("halving", "halfing"), "1: scheduler: 'halfing'", "did you mean halving?"),
    "an option out of range": (changed("halving", "halving:eta=1"), "1: search halving", "eta must be at least 2"),
    "too many for its brackets": (
        changed("halving", "hyperband:eta=3,most=1"),
        "1: trials: 2",
        "tries 1; leave some out, or raise `most`",
    ),
    "optuna with a list": (changed("halving", "optuna"), "1: scheduler: 'optuna'", "chooses settings itself"),
    "no parameters": (changed("[{rate: 0.1}, {rate: 1e-3}]", "[]"), "2: parameters: []", "a list of settings"),
    "settings that differ": (changed("{rate: 1e-3}", "{speed: 1}"), "2: parameters[1]: 'speed'", "first does: rate"),
    "a setting that is a list": (changed("0.1", "[1]"), "2: parameters[0].rate: [1]", "must be a number, a text"),
    "a name of its own": (changed("rate: 0.1", "until: 0.1"), "2: parameters: 'until'", "the search's own"),
    "a range upside down": (
        changed("[{rate: 0.1}, {rate: 1e-3}]", "{draw: {rate: {log: [1, 0.1]}}, count: 2}"),
        "2: parameters.draw.rate.log: [1.0, 0.1]",
        "the lower first",
    ),
    "a logarithm of nothing": (
        changed("[{rate: 0.1}, {rate: 1e-3}]", "{draw: {rate: {log: [0, 1]}}, count: 2}"),
        "2: parameters.draw.rate.log: [0.0, 1.0]",
        "begin above 0",
    ),
    "no count": (
        changed("[{rate: 0.1}, {rate: 1e-3}]", "{draw: {rate: {uniform: [0, 1]}}}"),
        "2: parameters.count: None",
        "whole number from 1",
    ),
    "a parameter nobody uses": (changed('"{rate}"', "x"), "2: parameters: 'rate'", "is used nowhere"),
    "a brace nobody fills": (changed('"{rate}"', '"{rate} {home}"'), "4: job.command: '{home}'", "write {{home}}"),
    "no folder": (changed('"{rate}"', '"{rate} {folder}"'), "4: job.command: '{folder}'", "needs a `folder`"),
    "a job's field misspelt": (GOOD + "  gpu: 2\n", "5: gpu: 2", "did you mean gpus"),
    "a job's field of the wrong kind": (GOOD + "  gpus: two\n", "5: gpus: 'two'", "must be a whole number"),
    "a job with an app": (GOOD + "  app: mine\n", "5: job.app: 'mine'", "leave it out"),
    "looks without work": (changed("halving", "curve"), "3: job.work: None", "curve looks at trials on the way"),
    "less than it begins with": (GOOD + "  gpus: 4\n  max_gpus: 2\n", "6: job.max_gpus: 2", "below the gang"),
}


@pytest.mark.parametrize("wrong", BAD)
def test_a_file_that_is_wrong_is_one_line_with_the_field_and_its_line(shoal: Shoal, wrong: str) -> None:
    text, says, hint = BAD[wrong]
    Path("sweep.yaml").write_text(text)
    code, out, err = shoal("search", "sweep.yaml")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"sweep.yaml:{says}" in err or f" {says}" in err
    assert hint in err


def test_a_leg_is_a_job_with_its_parameters_its_part_of_the_work_and_what_comes_after(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "docs/examples/search.yaml"
    wanted = read_search(example, folder=tmp_path)
    assert (wanted.app, wanted.trials) == ("sweep", 8)
    assert [dict(wanted.setting(n)) for n in (0, 7)] == [{"rate": 0.1, "decay": 0}, {"rate": 0.003, "decay": 0.0001}]
    rungs = SuccessiveHalving().rungs(8)
    leg = wanted.job(Leg(7, 2, rungs[0].until, rungs[1].until, 2))
    folder = tmp_path / "checkpoints" / "trial-7"
    words = ["--rate=0.003", "--decay=0.0001", f"--until={rungs[1].until}", f"--checkpoints={folder}"]
    assert leg.command == ["python", "train.py", *words]
    # Two fifteenths of two hours on a GPU, on twice as many.
    assert (leg.name, leg.app, leg.gpus) == ("sweep-7.2", "sweep", 2)
    assert leg.work == pytest.approx(7200 * 2 / 15 / 2)


def test_equal_seeds_draw_equal_settings_and_more_trials_change_none(tmp_path: Path) -> None:
    def settings(count: int, seed: int) -> list[dict[str, Any]]:
        draw = "{rate: {log: [1e-4, 0.1]}, drop: {uniform: [0, 0.5]}, how: {choice: [sgd, adam]}}"
        text = f"scheduler: single\nparameters: {{draw: {draw}, count: {count}, seed: {seed}}}\n"
        (tmp_path / "s.yaml").write_text(text + 'job: {command: [t, "{rate} {drop} {how}"]}\n')
        wanted = read_search(tmp_path / "s.yaml", folder=tmp_path)
        return [dict(wanted.setting(n)) for n in range(count)]

    assert settings(20, 1)[:8] == settings(8, 1)
    assert settings(8, 1) != settings(8, 2)
    for drawn in settings(20, 1):
        assert 1e-4 <= drawn["rate"] <= 0.1
        assert 0 <= drawn["drop"] <= 0.5
        assert drawn["how"] in ("sgd", "adam")


# ── on a cluster ──────────────────────────────────────────────────────────────────────────────────────────────────


def write_search(folder: Path, seconds: float, trials: int) -> None:
    words = ["-S", "train.py", "{trial}", "{until}", str(seconds), "{folder}"]
    search = {
        "scheduler": "halving:eta=2",
        "parameters": {"grid": {"rate": [0.1 / (n + 1) for n in range(trials)]}},
        "folder": "checkpoints",
        "job": {
            "command": [sys.executable, *words],
            "env": {"RATE": "{rate}"},
            "max_gpus": 2,
            "ranks": "node",
            "work": 60,
            "grace": 0,
        },
    }
    (folder / "sweep.yaml").write_text(json.dumps(search))  # JSON is YAML


def point_at(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_SERVER", client.url)
    monkeypatch.setenv("SHOAL_TOKEN", client._token)


def test_eight_trials_are_bid_for_halved_and_finished_and_the_journal_replays(
    shoal: Shoal, cluster: "Cluster", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_search(tmp_path, 0.05, 8)
    with cluster(tmp_path, "themis") as client:
        point_at(client, monkeypatch)
        code, out, err = shoal("search", "sweep.yaml", "--poll", "0.1", "--json")
    found = json.loads(out)
    assert (code, found["best"]["trial"], found["best"]["parameters"]) == (0, 0, {"rate": 0.1})
    assert [trial["legs"] for trial in found["trials"]] == [4, 3, 2, 2, 1, 1, 1, 1]
    assert "trial 0 (rate 0.1): goes on to 20% of its training, on 2 GPUs, as sweep-0.2-" in err
    assert "trial 7 (rate 0.0125): given up: others do better than loss 0.7 after 7% of its training" in err
    assert (tmp_path / "checkpoints/trial-0/trial-0").read_text() == "1.0"
    journal = tmp_path / "home" / "journal.sqlite"
    events = [e for record in JournalFile(journal).read() if isinstance(record, EventBatch) for e in record.events]
    bids = [event for event in events if isinstance(event, AppBid)]
    assert {bid.app for bid in bids} == {"sweep"}
    assert bids[0].jobs == tuple(range(8))
    # Each rung is a fifteenth, two, four and eight of a training of 60 s, from the second on over two GPUs.
    ahead = next(e for e in events if isinstance(e, JobSubmitted)).spec.ahead
    assert [phase[:2] for phase in ahead] == [(4, 2), (2, 2), (1, 2)]
    assert [phase[2] for phase in ahead] == pytest.approx([4.0, 8.0, 16.0])
    assert shoal("replay", str(journal))[0] == 0


def test_an_interrupted_search_says_what_it_leaves_or_cancels_it(
    shoal: Shoal, cluster: "Cluster", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt

    write_search(tmp_path, 100.0, 2)
    with cluster(tmp_path, "fifo") as client:
        point_at(client, monkeypatch)
        monkeypatch.setattr(command, "time", SimpleNamespace(sleep=interrupted))
        code, _, err = shoal("search", "sweep.yaml")
        jobs = sorted(row.id for row in client.get("/v1/jobs", list[JobRow]))
        assert (code, len(jobs)) == (130, 2)
        assert f"2 jobs are left to run unattended: `shoal cancel {' '.join(jobs)}` ends them\n" in err
        assert shoal("cancel", *jobs)[0] == 0
        code, _, err = shoal("search", "sweep.yaml", "--cancel")
        left = client.get("/v1/jobs", list[JobRow])
        assert (code, [row.id for row in left if row.state != "cancelling"]) == (130, [])
        assert "shoal: cancelled sweep-0-" in err
        write_search(tmp_path, 100.0, 2)
        (tmp_path / "checkpoints/trial-1/old").touch()
        code, _, err = shoal("search", "sweep.yaml")
        assert code == 2
        assert "trial-1': holds old of an earlier search" in err


# ── the protocol ──────────────────────────────────────────────────────────────────────────────────────────────────


def submit(client: Client, app: str) -> str:
    sleep = Submission(command=["sleep", "100"], app=app, work=100.0, grace=0, ranks="node")
    return client.post("/v1/jobs", sleep, Submitted).jobs[0]


def refused(client: Client, app: str, valuation: AppBidMessage) -> tuple[str, str]:
    with pytest.raises(InputError) as no:
        client.post(f"/v1/apps/{app}/bid", valuation, type(None))
    return no.value.field, no.value.hint


def test_an_app_gets_its_offer_and_bids_for_its_own_jobs_alone(cluster: "Cluster", tmp_path: Path) -> None:
    with cluster(tmp_path, "themis") as admin:
        ana, bo = (
            Client(admin.url, admin.post("/v1/tokens", NewToken(name, "user", name), TokenRow).secret or "")
            for name in ("ana", "bo")
        )
        jobs = [submit(ana, "hers"), submit(ana, "hers")]
        offer = ana.get("/v1/apps/hers/offer", AppOffer)
        assert (offer.auctioned, offer.kind, offer.most, offer.said) == (True, "gpu", 2, False)
        assert [left.id for left in offer.jobs] == jobs
        assert [kind.machines for kind in offer.kinds] == [[(2, 2)]]
        assert offer.kinds[0].until is not None
        assert offer.kinds[0].until > time.time()
        assert offer.rho is not None
        ana.post("/v1/apps/hers/bid", AppBidMessage(jobs, [(1, 500.0), (2, 300.0)]), type(None))
        submit(bo, "his")  # the next decision counts it
        assert ana.get("/v1/apps/hers/offer", AppOffer).said
        assert refused(ana, "hers", AppBidMessage(jobs[:1], [(1, 5.0)]))[1].startswith("its jobs are others now")
        assert refused(ana, "hers", AppBidMessage(jobs, [(1, 5.0), (2, 6.0)])) == (
            "rows[1][1]",
            "must fall: 1 GPUs already take 5 s",
        )
        assert refused(ana, "hers", AppBidMessage(jobs, [(1, -5.0)]))[0] == "rows[0][1]"
        assert refused(ana, "none", AppBidMessage(jobs, [(1, 5.0)]))[0] == "app"
        assert refused(bo, "hers", AppBidMessage(jobs, [(1, 5.0)])) == refused(
            ana, "none", AppBidMessage(jobs, [(1, 5.0)])
        )
        with pytest.raises(InputError, match="needs app"):
            bo.post("/v1/jobs", Submission(command=["true"], ahead=[Ahead(1, 1, 1.0)]), Submitted)
        submit(bo, "hers")
        assert "other tenants" in refused(ana, "hers", AppBidMessage(jobs, [(1, 5.0)]))[1]
        for client in (ana, bo):
            client.close()


def test_a_cluster_without_auctions_says_so(cluster: "Cluster", tmp_path: Path) -> None:
    with cluster(tmp_path, "fifo") as client:
        job = submit(client, "sweep")
        assert not client.get("/v1/apps/sweep/offer", AppOffer).auctioned
        assert "holds no auctions" in refused(client, "sweep", AppBidMessage([job], [(1, 5.0)]))[1]
