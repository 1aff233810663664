"""The page of a real cluster in a real Chromium, used as people use it: `make test-browser`.

Not named ``test_…``, so that `make test` leaves it out: it needs a browser, and a minute.
"""

import json
import re
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from tests.browser.cluster import LiveCluster

LINES = "for i in $(seq 1800); do echo line $i; sleep 1; done"
TRAINING = """
import time
from shoal.trainer.session import Progress, Session
session = Session()
session.open()
for step in range(60):
    time.sleep(0.5)
    session.report(Progress(step, 100, 0, batch_size=32, loss=1 / (step + 1), learning_rate=0.1))
"""
SEARCH = {
    "scheduler": "halving:eta=2",
    "best": 1,
    "trials": [
        {"trial": 0, "state": "given_up", "parameters": {"rate": "0.9"}, "jobs": ["a-1"], "losses": [[0.25, 2.5]]},
        {"trial": 1, "state": "training", "parameters": {"rate": "0.1"}, "losses": [[0.25, 1.5], [0.5, 1.0]],
         "place": "/data/sweep/trial-1"},
    ],
}  # fmt: skip
VIEWS = ("cluster", "queue", "timeline", "decisions", "fairness", "policies", "searches")

Open: TypeAlias = Callable[..., Page]

expect.set_options(timeout=20_000)  # other work may keep the machine busy


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    made = LiveCluster(tmp_path_factory.mktemp("browser") / "home")
    made.start()
    yield made
    made.stop()


@pytest.fixture(scope="module")
def tokens(cluster: LiveCluster) -> dict[str, str]:
    users = {who: cluster.shoal("token", "create", who, "--role", "user", "--tenant", who) for who in ("ana", "bo")}
    return {**users, "admin": cluster.shoal("token", "create", "root", "--role", "admin")}


@pytest.fixture(scope="module")
def job(cluster: LiveCluster, tokens: dict[str, str]) -> str:
    """A job of ana that runs during all tests."""
    made = cluster.call(
        "POST", "/v1/jobs", tokens["ana"], {"command": ["bash", "-c", LINES], "name": "hers", "work": 1800}
    )
    return str(made["jobs"][0])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert found, "no Chromium: apt-get install chromium"
    with sync_playwright() as playwright:
        # Without a sandbox, since tests may run as root; it visits this machine's own server alone.
        launched = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def open_page(browser: Browser, cluster: LiveCluster, tokens: dict[str, str]) -> Iterator[Open]:
    """Opens a page, logged in with a token; at the end no script may have failed or been refused."""
    contexts: list[BrowserContext] = []
    faults: list[str] = []

    def note(kind: str, text: str) -> None:
        if "Failed to load resource" not in text and "net::ERR" not in text:
            faults.append(f"{kind}: {text}")

    def build(view: str = "cluster", who: str | None = "admin", **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("pageerror", lambda error: note("error", str(error)))
        page.on("console", lambda said: note(said.type, said.text) if said.type in ("error", "warning") else None)
        page.goto(f"{cluster.url}#/{view}")
        if who is not None:
            page.get_by_label("Token").fill(tokens[who])
            page.get_by_role("button", name="Log in").click()
            expect(page.get_by_label("Token")).to_have_count(0)  # a page that is left earlier is not logged in
            expect(page.locator("main.view h1, .empty").first).to_be_visible()
        return page

    yield build
    for context in contexts:
        context.close()
    assert not faults


def test_a_wrong_token_is_refused_and_a_right_one_logs_in(open_page: Open, tokens: dict[str, str]) -> None:
    page = open_page(who=None)
    page.get_by_label("Token").fill("shoal_wrong")
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("alert")).to_contain_text("no valid token")
    page.get_by_label("Token").fill(tokens["ana"])
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Cluster")
    (cookie,) = page.context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
    assert tokens["ana"] not in page.evaluate("JSON.stringify({...localStorage, ...sessionStorage}) + document.cookie")
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Cluster")
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
    assert not page.context.cookies()


def test_the_link_of_shoal_web_logs_one_browser_in_once(browser: Browser, cluster: LiveCluster) -> None:
    link = cluster.link()
    for expected in ("Cluster", "Log in"):
        context = browser.new_context()
        page = context.new_page()
        page.goto(link)
        expect(page.get_by_role("heading", level=1)).to_have_text(expected)
        assert "code=" not in page.url
        context.close()


def test_the_link_of_shoal_web_logs_in_where_the_page_is_open_already(open_page: Open, cluster: LiveCluster) -> None:
    page = open_page(who=None)
    expect(page.get_by_label("Token")).to_be_visible()
    page.goto(cluster.link())
    expect(page.locator(".tile").first).to_be_visible()
    assert "code" not in page.url


def test_a_job_appears_runs_says_why_prints_its_log_and_is_cancelled(
    open_page: Open, cluster: LiveCluster, tokens: dict[str, str]
) -> None:
    page = open_page("queue", "ana")
    submission = {"command": ["bash", "-c", LINES], "name": "seen", "work": 100, "grace": 1}
    (new,) = cluster.call("POST", "/v1/jobs", tokens["ana"], submission)["jobs"]
    row = page.get_by_role("row").filter(has_text=new)
    expect(row).to_contain_text("running")
    row.get_by_role("link").click()
    expect(page.get_by_role("heading", level=1)).to_have_text(new)
    expect(page.locator(".why")).to_contain_text("GPU")
    expect(page.get_by_role("log")).to_contain_text("line 3")
    expect(page.locator(".story")).to_contain_text("Submitted by ana")
    page.reload()
    expect(page.get_by_role("log")).to_contain_text("line 5")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Keep it as it is").click()
    expect(page.locator("dialog")).to_have_count(0)
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".title .pill")).to_have_text("cancelled")
    expect(page.get_by_role("button", name="Hold")).to_have_count(0)
    page.get_by_role("link", name="Queue").first.click()
    page.get_by_role("button", name="Ended").click()
    expect(page.get_by_role("row").filter(has_text=new)).to_contain_text("cancelled")


def test_a_waiting_job_is_held_released_and_given_a_priority(
    open_page: Open, cluster: LiveCluster, tokens: dict[str, str], job: str
) -> None:
    assert job  # holds one of the four GPUs
    (wide,) = cluster.call("POST", "/v1/jobs", tokens["bo"], {"command": ["true"], "name": "wide", "gpus": 4})["jobs"]
    page = open_page(f"job/{wide}", "bo")
    expect(page.locator(".title .pill")).to_have_text("waiting")
    expect(page.locator(".why")).to_contain_text("come")
    page.get_by_role("button", name="Hold").click()
    expect(page.locator(".title .pill")).to_have_text("held")
    page.get_by_label("Priority").fill("7")
    page.get_by_role("button", name="Set").click()
    expect(page.locator(".story")).to_contain_text("Priority set to 7 by bo")
    page.get_by_role("button", name="Release").click()
    expect(page.locator(".title .pill")).to_have_text("waiting")
    cluster.call("DELETE", f"/v1/jobs/{wide}", tokens["bo"])


def test_a_job_is_submitted_from_the_page(open_page: Open, cluster: LiveCluster, tokens: dict[str, str]) -> None:
    page = open_page("queue", "ana")
    page.get_by_role("button", name="Submit a job").click()
    page.get_by_label("Command").fill("echo hello from the page")
    page.get_by_label("Name").fill("typed")
    page.get_by_role("spinbutton", name="GPUs", exact=True).fill("99")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("gpus")
    page.get_by_role("spinbutton", name="GPUs", exact=True).fill("1")
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("typed-")
    expect(page.get_by_role("log")).to_contain_text("hello from the page")
    expect(page.locator(".title .pill")).to_have_text("completed")


def test_the_run_of_a_tracker_that_a_job_prints_or_names_in_its_environment_is_a_link(
    open_page: Open, cluster: LiveCluster, tokens: dict[str, str]
) -> None:
    printed, named = (
        "https://wandb.example.org/ana/vision/runs/k2m9x",
        "https://mlflow.example.org/#/experiments/0/runs/7",
    )
    submission = {
        "command": ["echo", f"wandb: View run resnet at: {printed}"],
        "name": "tracked",
        "env": {"MLFLOW_TRACKING_URI": "https://mlflow.example.org", "MLFLOW_RUN_ID": "7"},
    }
    (new,) = cluster.call("POST", "/v1/jobs", tokens["ana"], submission)["jobs"]
    page = open_page(f"job/{new}", "ana")
    for address in (printed, named):
        link = page.get_by_role("link", name=address.partition("//")[2])
        expect(link).to_have_attribute("href", address)
        expect(link).to_have_attribute("rel", "noreferrer noopener")


def test_a_completed_job_that_reported_no_progress_shows_no_part_of_its_work(
    open_page: Open, cluster: LiveCluster, tokens: dict[str, str]
) -> None:
    (new,) = cluster.call("POST", "/v1/jobs", tokens["ana"], {"command": ["true"], "name": "quiet", "work": 50})["jobs"]
    page = open_page(f"job/{new}", "ana")
    expect(page.locator(".title .pill")).to_have_text("completed")
    expect(page.get_by_role("heading", name="Facts")).to_be_visible()
    expect(page.get_by_role("progressbar")).to_have_count(0)


def test_a_run_of_the_timeline_shows_the_decision_that_started_it(open_page: Open, job: str) -> None:
    page = open_page("timeline")
    page.get_by_role("button", name="10 min").click()
    page.get_by_text("As a table").click()
    expect(page.get_by_role("row").filter(has_text=job)).to_contain_text("ana")
    page.get_by_text("As a table").click()
    lanes = page.locator("canvas.lanes")
    page.wait_for_timeout(3000)  # until its bar is wider than 3 pixels
    for lane in range(4):
        box = lanes.bounding_box()
        assert box is not None
        x = 92 + (box["width"] - 92) * 0.65 - 3  # just before now: a third of the time shown is yet to come
        lanes.click(position={"x": x, "y": 28 + 20 * lane + 10})
        if page.locator(".picked").filter(has_text=job).count():
            break
    page.locator(".picked").get_by_role("link", name=re.compile("^decision ")).click()
    expect(page.locator(".title .pill")).to_have_text("same when made again", timeout=60_000)
    row = page.get_by_role("row").filter(has_text=job)
    expect(row).to_contain_text("starts")
    expect(row).to_contain_text("1 GPU")


def test_the_map_shows_the_use_of_each_node_in_the_last_hour(open_page: Open, job: str) -> None:
    assert job
    page = open_page()
    expect(page.locator(".map")).not_to_contain_text("% used")
    page.get_by_role("button", name="Use in the last hour").click()
    expect(page.locator(".node").first).to_contain_text(re.compile(r"[1-9]\d* % used"))
    expect(page.locator(".map .legend")).to_contain_text("Part of its GPUs' time that jobs held")
    page.get_by_role("button", name="Jobs by tenant").click()
    expect(page.locator(".map .legend")).to_contain_text("ana")


def show(page: Page, view: str, rows: dict[str, dict[str, Any]], at: float | None = None) -> None:
    """Show a view with rows that the test makes up in place of the cluster's, at a time of the cluster's clock."""
    views = {name: {"reset": True, "gone": [], "rows": found} for name, found in rows.items()}
    data = json.dumps({"now": at or time.time(), "views": views})
    event = f"id: test.1\nevent: changed\ndata: {data}\n\n"
    page.unroute_all()
    page.route("**/v1/watch?*", lambda route: route.fulfill(body=event, content_type="text/event-stream"))
    page.goto(f"{page.url.partition('#')[0]}#/{view}")
    expect(page.get_by_role("heading", level=1)).to_have_text(view.capitalize())
    page.unroute_all()
    page.route("**/v1/watch?*", lambda route: route.fulfill(body=":\n\n", content_type="text/event-stream"))


def node_row(name: str) -> dict[str, Any]:
    return {"name": name, "kind": "h100", "gpus": 8, "rack": "", "up": True, "used": 8, "jobs": [], "held": {},
            "suspended": [], "heard": None, "drained": None, "disk_free": None}  # fmt: skip


def test_a_time_of_another_day_has_its_date(open_page: Open) -> None:
    tomorrow = time.time() + 40 * 3600
    start = {"median": tomorrow, "low": tomorrow - 3600, "high": tomorrow + 3600}
    job = {"id": "later", "tenant": "ana", "state": "pending", "held": 0, "wanted": 1, "submitted": 1.0, "start": start}
    page = open_page("queue")
    show(page, "timeline", {"nodes": {"n": node_row("n")}, "running": {"later": job}, "seats": {}})
    expected = page.locator("section.card").filter(has_text="Expected to start").locator("time")
    expect(expected).to_have_text(re.compile(r"^[A-Z][a-z]{2} \d+, \d\d:\d\d$"))


def test_a_tenant_has_the_same_colour_whoever_else_is_there(
    open_page: Open, cluster: LiveCluster, tokens: dict[str, str]
) -> None:
    whole = cluster.call("GET", "/v1/cluster", tokens["admin"])
    colours = set()
    for others in ([], ["ana"], ["ana", "art", "bea"]):
        page = open_page("queue")
        jobs = {who: {"id": who, "tenant": who, "state": "running", "held": 1} for who in (*others, "bo")}
        node = node_row("n") | {"held": dict.fromkeys(jobs, 1)}
        views = {"cluster": {"cluster": whole}, "nodes": {"n": node}, "running": jobs, "usage": {}}
        page.goto("about:blank")
        page.goto(cluster.url)
        show(page, "queue", {"jobs": {}})
        show(page, "cluster", views)
        colours.add(page.locator(".held li").filter(has_text="bo").locator(".swatch").get_attribute("class"))
    assert len(colours) == 1


def test_a_card_of_a_node_that_did_not_change_is_not_made_again(
    open_page: Open, cluster: LiveCluster, tokens: dict[str, str]
) -> None:
    names = [f"node-{i:04d}" for i in range(500)]
    whole = cluster.call("GET", "/v1/cluster", tokens["admin"])
    page = open_page("queue")
    page.evaluate(
        """() => {
          window.made = 0;
          const make = Document.prototype.createElement;
          Document.prototype.createElement = function (...args) { made += 1; return make.apply(this, args); };
        }"""
    )
    nodes = {name: node_row(name) for name in names}
    show(page, "cluster", {"cluster": {"cluster": whole}, "nodes": nodes, "running": {}, "usage": {}})
    expect(page.locator(".node")).to_have_count(500)
    page.evaluate("made = 0")
    page.get_by_role("heading", level=1).evaluate("element => element.textContent = ''")
    expect(page.get_by_role("heading", level=1)).to_have_text("Cluster")  # drawn again
    assert page.evaluate("made") < 1000
    nodes["node-0007"] |= {"drained": "a new fan", "used": 0}
    show(page, "queue", {"jobs": {}})
    show(page, "cluster", {"cluster": {"cluster": whole}, "nodes": nodes, "running": {}, "usage": {}})
    expect(page.locator(".node.drained")).to_have_count(1)


def test_the_timeline_of_forty_thousand_gpus_is_drawn(open_page: Open) -> None:
    names, began = [f"node-{i:04d}" for i in range(5000)], time.time() - 60
    seats = {
        name: {"job": "wide", "tenant": "ana", "run": 1, "node": name, "gpus": 8, "began": began} for name in names[::2]
    }
    page = open_page("queue")
    show(page, "timeline", {"nodes": {name: node_row(name) for name in names}, "running": {}, "seats": seats})
    expect(page.locator(".total")).to_have_text("2,500 runs shown")
    assert page.locator("canvas.lanes").evaluate(DRAWN)


# Whether anything is drawn on the canvas: one that is too large stays empty without an error.
DRAWN = """canvas => {
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, 200);
  return data.some((part) => part > 0);
}"""


def test_a_timeline_higher_than_the_window_shows_and_picks_the_runs_that_are_scrolled_to(open_page: Open) -> None:
    names, began = [f"node-{i:03d}" for i in range(100)], time.time() - 600
    seats = {
        name: {"job": f"on-{name}", "tenant": "ana", "run": 1, "node": name, "gpus": 8, "began": began}
        for name in names
    }
    page = open_page("queue")
    show(page, "timeline", {"nodes": {name: node_row(name) for name in names}, "running": {}, "seats": seats})
    expect(page.locator(".total")).to_have_text("100 runs shown")
    lanes = page.locator("canvas.lanes")
    for scrolled, node in ((0, "node-001"), (4000, "node-051")):
        page.evaluate("y => scrollTo(0, document.querySelector('.space').offsetTop + y)", scrolled)
        page.wait_for_timeout(200)
        box = lanes.bounding_box()
        assert box is not None
        assert box["y"] < 120
        assert box["height"] <= page.viewport_size["height"] if page.viewport_size else False
        page.mouse.click(box["x"] + 92 + (box["width"] - 92) * 0.6, box["y"] + 28 + 80 + 40)  # the second node in sight
        expect(page.locator(".picked")).to_contain_text(f"on-{node}")
    assert lanes.evaluate(DRAWN)


def test_the_timeline_shows_when_a_waiting_job_is_expected_to_start(
    open_page: Open, cluster: LiveCluster, tokens: dict[str, str], job: str
) -> None:
    assert job  # is expected to end, so that others can start
    wide = {"command": ["sleep", "60"], "name": "coming", "gpus": 4, "work": 60}
    (new,) = cluster.call("POST", "/v1/jobs", tokens["bo"], wide)["jobs"]
    page = open_page("timeline")
    expect(page.locator("section.card").filter(has_text="Expected to start")).to_contain_text(new, timeout=60_000)
    box = page.locator("canvas.lanes").bounding_box()
    assert box is not None
    page.locator("canvas.lanes").click(position={"x": box["width"] / 2, "y": box["height"] - 16})  # the last lane
    expect(page.get_by_role("heading", level=1)).to_have_text(new)
    cluster.call("DELETE", f"/v1/jobs/{new}", tokens["bo"])


def test_a_decision_is_opened_from_the_list_and_from_a_jobs_story_and_shows_a_tenant_its_own(
    open_page: Open, job: str
) -> None:
    page = open_page("decisions", "ana")
    page.locator(".moves li").filter(has_text=job).first.get_by_role("link", name=re.compile("^#")).click()
    expect(page.locator(".title .pill")).to_have_text("same when made again", timeout=60_000)
    link = page.url
    page.goto(f"{link.partition('#')[0]}#/job/{job}")
    page.locator(".story a").last.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Decision")
    other = open_page(link.partition("#/")[2], "bo")
    expect(other.locator(".title .pill")).to_have_text("same when made again", timeout=60_000)
    assert job not in other.content()
    other.goto(f"{link.partition('#')[0]}#/decision/999999")
    expect(other.locator(".empty")).to_contain_text("There is no decision 999999")


def test_a_jobs_training_figures_are_charts(open_page: Open, cluster: LiveCluster, tokens: dict[str, str]) -> None:
    script = cluster.home / "train.py"
    script.write_text(TRAINING)
    submission = {"command": [sys.executable, str(script)], "name": "trains", "work": 100, "grace": 1}
    (new,) = cluster.call("POST", "/v1/jobs", tokens["ana"], submission)["jobs"]
    page = open_page(f"job/{new}", "ana")
    for figure in ("Loss", "Learning rate", "Batch size"):
        expect(page.locator("figure").filter(has_text=figure)).to_be_visible(timeout=40_000)
    expect(page.get_by_role("img", name=re.compile("^Batch size over time; last 32 samples"))).to_be_visible()
    cluster.call("DELETE", f"/v1/jobs/{new}?force=true", tokens["ana"])


def test_policies_are_compared_on_the_live_state(open_page: Open, job: str) -> None:
    assert job
    page = open_page("policies")
    page.get_by_role("checkbox", name=re.compile("^fifo ")).check()
    page.get_by_role("button", name="Compare").click()
    results = page.locator("section.card table")
    expect(results).to_contain_text("as it is", timeout=60_000)
    expect(results).to_contain_text("policy fifo")


def test_a_shadow_policy_is_asked_and_the_policy_is_switched_after_a_preview(
    open_page: Open, cluster: LiveCluster, tokens: dict[str, str], job: str
) -> None:
    assert job
    page = open_page("policies")
    page.locator("select#shadow").select_option("fifo")
    page.get_by_role("button", name="Start").click()
    (new,) = cluster.call("POST", "/v1/jobs", tokens["ana"], {"command": ["sleep", "1"], "name": "brief"})["jobs"]
    assert new
    expect(page.locator("section.card").filter(has_text="Asked beside it")).to_contain_text("Same verdicts")
    expect(page.locator("section.card").filter(has_text="Asked beside it")).to_contain_text(" decisions")
    page.locator("select#switch").select_option("las")
    page.get_by_role("button", name="Preview and switch…").click()
    expect(page.locator("dialog table")).to_contain_text("Jobs that end", timeout=60_000)
    page.get_by_role("button", name="Switch to las").click()
    expect(page.locator("section.card").filter(has_text="Decides now")).to_contain_text("las")
    cluster.call("POST", "/v1/policy", tokens["admin"], {"policy": "shoal"})
    cluster.call("POST", "/v1/policy/shadow", tokens["admin"], {"policy": None})
    other = open_page("policies", "bo")
    expect(other.get_by_role("heading", name="Decides now")).to_be_visible()
    expect(other.get_by_role("button", name="Preview and switch…")).to_have_count(0)


def test_fairness_shows_rho_over_time_who_has_less_than_promised_and_small_times_on_gpus(
    open_page: Open, cluster: LiveCluster, tokens: dict[str, str], job: str
) -> None:
    assert job  # of ana; declares its work
    waits = {"command": ["true"], "name": "waits", "gpus": 4, "work": 60}
    (wide,) = cluster.call("POST", "/v1/jobs", tokens["bo"], waits)["jobs"]
    page = open_page("fairness")
    ana = page.get_by_role("row").filter(has=page.get_by_role("rowheader", name="ana"))
    expect(ana.locator("td[data-label='ρ now']")).to_contain_text(re.compile(r"^\d\.\d\d"))
    expect(ana.locator("td[data-label='Used since the start']")).to_contain_text(re.compile(r"\d GPU-(s|min)"))
    expect(page.get_by_role("row").filter(has_text="bo").first).to_contain_text("0 GPU-s")
    expect(page.locator("section.card").filter(has_text="Who borrows")).to_contain_text(
        re.compile("bo (has|have) jobs and less than promised")
    )
    page.locator("select#tenant").select_option("ana")
    expect(page.get_by_role("img", name=re.compile(r"^ρ of ana over time; last \d"))).to_be_visible()
    chart = page.get_by_role("img", name="GPUs held by ana over time")
    chart.hover(position={"x": chart.evaluate("canvas => canvas.clientWidth") - 9, "y": 60})
    expect(page.locator("#tip")).to_contain_text("held: 1 GPU")
    expect(page.locator("#tip")).to_contain_text(re.compile(r"\d:\d\d:\d\d"))
    cluster.call("DELETE", f"/v1/jobs/{wide}", tokens["bo"])


def test_a_search_shows_its_trials_and_where_the_best_checkpoint_is(
    open_page: Open, cluster: LiveCluster, tokens: dict[str, str]
) -> None:
    cluster.call("POST", "/v1/apps/sweep/search", tokens["ana"], SEARCH)
    page = open_page("searches", "ana")
    page.get_by_role("link", name="sweep").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("sweep")
    expect(page.get_by_role("row").filter(has_text="1 (best)")).to_contain_text("rate 0.1")
    expect(page.get_by_role("row").filter(has_text="rate 0.9")).to_contain_text("given up")
    expect(page.locator(".facts")).to_contain_text("/data/sweep/trial-1")
    expect(page.get_by_role("img", name="Loss of 2 trials over their training")).to_be_visible()
    other = open_page("searches", "bo")
    expect(other.locator(".empty")).to_contain_text("No search has reported")


def test_another_tenants_job_is_refused_and_its_name_is_nowhere(open_page: Open, job: str) -> None:
    page = open_page(f"job/{job}", "bo")
    expect(page.locator(".empty")).to_contain_text("There is no job")
    for view in VIEWS:
        page.goto(f"{page.url.partition('#')[0]}#/{view}")
        expect(page.locator("main.view h1")).to_be_visible()
        page.wait_for_timeout(1500)
        assert job not in page.content().replace(f"no job {job}", "")
        assert "ana" not in page.locator("main").inner_text()


def test_markup_in_values_is_shown_as_text(open_page: Open, cluster: LiveCluster, tokens: dict[str, str]) -> None:
    evil = "<img src=x onerror=window.broken=1><script>window.broken=1</script>"
    submission = {"command": ["bash", "-c", f"echo '{evil}'; sleep 60"], "name": "evil", "grace": 1}
    (new,) = cluster.call("POST", "/v1/jobs", tokens["ana"], submission)["jobs"]
    cluster.call("POST", "/v1/nodes/gpu-1/drain", tokens["admin"], {"reason": evil})
    page = open_page("cluster")
    expect(page.locator(".node.drained")).to_contain_text(evil)
    page.goto(f"{cluster.url}#/job/{new}")
    expect(page.get_by_role("log")).to_contain_text(evil)
    expect(page.locator(".command")).to_contain_text("onerror")
    assert page.evaluate("window.broken") is None
    assert page.locator("main img, main script").count() == 0
    cluster.call("POST", "/v1/nodes/gpu-1/resume", tokens["admin"])
    cluster.call("DELETE", f"/v1/jobs/{new}?force=true", tokens["ana"])


def test_everything_is_reached_by_keyboard(open_page: Open, job: str) -> None:
    page = open_page()
    page.reload()
    expect(page.get_by_role("heading", level=1)).to_have_text("Cluster")
    page.keyboard.press("Tab")
    expect(page.get_by_text("Skip to the content")).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("hers")
    page.keyboard.press("Escape")
    page.get_by_role("table").focus()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("link", name=job)).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text(job)
    page.keyboard.press("3")
    expect(page.get_by_role("heading", level=1)).to_have_text("Timeline")
    page.locator("canvas.lanes").focus()
    page.keyboard.press("+")
    expect(page.get_by_role("button", name="1 h")).to_have_attribute("aria-pressed", "false")
    page.keyboard.press("4")
    expect(page.get_by_role("heading", level=1)).to_have_text("Decisions")
    page.keyboard.press("5")
    expect(page.get_by_role("heading", level=1)).to_have_text("Fairness")
    page.keyboard.press("6")
    expect(page.get_by_role("heading", level=1)).to_have_text("Policies")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_every_view_fits_its_width_and_has_no_violation_of_accessibility_rules(
    open_page: Open, job: str, scheme: str, width: int
) -> None:
    page = open_page(color_scheme=scheme, viewport={"width": width, "height": 844})
    for view in (*VIEWS, f"job/{job}", "decision/0", "search/sweep"):
        page.goto(f"{page.url.partition('#')[0]}#/{view}")
        expect(page.locator("main.view h1")).to_be_visible()
        page.wait_for_timeout(1200)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        found = Axe().run(page)
        assert found.violations_count == 0, f"{view}: {found.generate_report()}"


# Notes each text that is drawn beyond the left or right edge of a chart.
CUT = """
window.cut = [];
const draw = CanvasRenderingContext2D.prototype.fillText;
CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
  const wide = this.measureText(text).width, from = x - wide * { center: 0.5, right: 1, end: 1 }[this.textAlign] || x;
  if (from < -1 || from + wide > this.canvas.clientWidth + 1) cut.push(text);
  draw.call(this, text, x, y);
};
"""


def test_no_text_of_a_chart_is_cut_off_at_its_edge(
    open_page: Open, cluster: LiveCluster, tokens: dict[str, str]
) -> None:
    page = open_page("fairness")
    page.context.add_init_script(CUT)
    chart = page.get_by_role("img", name=re.compile("^GPUs held by tenant since"))
    wide = chart.evaluate("canvas => canvas.clientWidth")
    minute = 60 * (time.time() // 60 + 2)
    end = minute + 120 * 17.5 / (wide - 54)  # the text of this minute has its middle 25.5 pixels from the right edge
    rows = [
        {"at": at, "up": 4, "used": 1, "running": 1, "waiting": 0, "held": {}} for at in (end - 120, end - 60, end - 1)
    ]
    whole = cluster.call("GET", "/v1/cluster", tokens["admin"])
    page.goto("about:blank")
    page.goto(cluster.url)
    show(page, "queue", {"jobs": {}})
    usage = {f"{row['at']}": row for row in rows}
    show(page, "fairness", {"cluster": {"cluster": whole}, "tenants": {}, "usage": usage, "fairness": {}}, at=end)
    expect(chart).to_be_visible()
    page.wait_for_timeout(300)
    assert page.evaluate("cut") == []


def test_the_page_outlives_the_control_plane(open_page: Open, cluster: LiveCluster, tokens: dict[str, str]) -> None:
    page = open_page("queue")
    expect(page.locator(".live")).to_have_text("live")
    cluster.stop(signal.SIGKILL)
    expect(page.locator("#banner")).to_contain_text("does not answer since")
    cluster.start()
    expect(page.locator(".live")).to_have_text("live", timeout=40_000)
    expect(page.locator("#banner")).to_be_empty()
    submission = {"command": ["true"], "name": "later", "gpus": 4, "hold": True}
    (new,) = cluster.call("POST", "/v1/jobs", tokens["admin"], submission)["jobs"]
    expect(page.get_by_role("row").filter(has_text=new)).to_be_visible()
    cluster.call("DELETE", f"/v1/jobs/{new}", tokens["admin"])


def test_ten_thousand_jobs_are_a_short_document(open_page: Open, cluster: LiveCluster, tokens: dict[str, str]) -> None:
    for part in range(5):
        one = {"command": ["true"], "name": f"many{part}", "gpus": 4, "tenant": "ana", "hold": True}
        jobs = [one for _ in range(2000)]
        cluster.call("POST", "/v1/jobs/batch", tokens["admin"], {"jobs": jobs})
    page = open_page("queue")
    expect(page.locator(".total")).to_contain_text("10,0", timeout=60_000)
    assert page.locator(".rows .row").count() < 60
    page.get_by_role("button", name="Held", exact=True).click()
    expect(page.locator(".total")).to_have_text("10,000 jobs")
    for place, first in (("ascending", "many0"), ("descending", "many4")):
        page.locator(".head .job button").click()
        expect(page.locator(".head .job")).to_have_attribute("aria-sort", place)
        expect(page.locator(".rows .row").first).to_contain_text(first)
    page.get_by_role("button", name="All live").click()
    page.get_by_role("searchbox").fill("many3")
    expect(page.locator(".total")).to_have_text("2,000 jobs")
    page.locator(".scroll").evaluate("element => element.scrollTop = 1e9")
    expect(page.locator(".rows [aria-rowindex='2001']")).to_be_visible()
