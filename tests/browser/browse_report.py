"""The page of runs in a real Chromium, from a file and served: `make test-browser`."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect
from tests.browser import browse

browser = browse.browser
VIEWS = ("compare", "cluster", "queue", "timeline", "fairness", "job/demo-085")


def shoal(*args: str) -> None:
    subprocess.run([sys.executable, "-m", "shoal", *args], check=True, capture_output=True, timeout=300)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("report")
    policies = ("--policy", "fifo", "--policy", "las")
    shoal("simulate", "--workload", "demo", "--cluster", "v100:4x4,k80:4x4", *policies, "--out", str(base / "runs"))
    shoal("report", str(base / "runs"), "--html", str(base / "page.html"))
    return base


@pytest.fixture(params=["light", "dark", "phone"])
def page(request: pytest.FixtureRequest, browser: Browser, runs: Path) -> Iterator[Page]:
    """The page from its file; no script may fail or be refused, and nothing may be loaded."""
    phone, scheme = request.param == "phone", "dark" if request.param == "dark" else "light"
    size = {"width": 390, "height": 844} if phone else {"width": 1280, "height": 900}
    options: dict[str, Any] = {"viewport": size, "color_scheme": scheme}
    context, faults = browser.new_context(**options), list[str]()
    made = context.new_page()
    made.on("pageerror", lambda error: faults.append(str(error)))
    made.on("console", lambda said: faults.append(said.text) if said.type in ("error", "warning") else None)
    made.on("request", lambda asked: faults.append(asked.url) if not asked.url.startswith(("file:", "data:")) else None)
    made.goto((runs / "page.html").as_uri())
    yield made
    context.close()
    assert faults == []


@pytest.mark.parametrize("view", VIEWS)
def test_each_view_of_a_run_fits_its_screen_and_breaks_no_rule_of_accessibility(page: Page, view: str) -> None:
    page.goto(f"{page.url.partition('#')[0]}#/{view}")
    expect(page.locator("main h1")).to_be_visible()
    page.wait_for_timeout(300)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


def test_the_same_job_is_seen_under_each_policy_at_each_moment(page: Page) -> None:
    page.goto(f"{page.url.partition('#')[0]}#/cluster")
    used = page.locator(".tile dd").first
    page.locator("#slider").fill("1000")
    expect(used).to_contain_text("0 of 32")
    page.locator("#slider").fill("400")
    expect(used).not_to_contain_text("0 of 32")
    page.goto(f"{page.url.partition('#')[0]}#/job/demo-085")
    expect(page.locator(".story")).to_contain_text("Starts with")
    first = page.locator(".story").inner_text()
    page.get_by_label("Run", exact=True).select_option("1")
    expect(page.locator(".story")).to_contain_text("Starts with")
    assert page.locator(".story").inner_text() != first


def test_a_job_that_is_not_listed_is_shown_as_missing(page: Page) -> None:
    page.goto(f"{page.url.partition('#')[0]}#/job/none")
    expect(page.get_by_text("This report lists no job none.")).to_be_visible()


def test_the_page_is_served_until_the_command_is_interrupted(browser: Browser, runs: Path) -> None:
    command = [sys.executable, "-m", "shoal", "report", str(runs / "runs"), "--serve", "--json"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as serving:
        assert serving.stderr is not None
        line = serving.stderr.readline()
        context = browser.new_context()
        page = context.new_page()
        page.goto(next(word for word in line.split() if word.startswith("http")))
        expect(page.locator("main h1")).to_have_text("demo")
        context.close()
        serving.send_signal(2)
        assert serving.wait(30) == 0
