"""The speed of a cluster's page in a real Chromium: `python -m tests.browser.numbers [first-view | updates | …]`.

Figures are in docs/dashboard.md. Wall-clock times mean something on an idle machine, or at real-time priority, which
the control plane and Chromium inherit (`chrt -f 10 python -m tests.browser.numbers first-view`); nothing is asserted.
"""

import http.client
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright
from tests.browser.browse import node_row, show
from tests.browser.cluster import LiveCluster

JOBS = 10_000
PAGES = 100
STREAMS_PER_TENANT = 15
WATCH_SECONDS = 20.0
REPEATS = 11
RUNS = 100_000

_FRAMES = """async ({steps, act}) => {
  const scroll = document.querySelector(".scroll"), search = document.getElementById("search"), times = [];
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  await frame();
  for (let i = 0; i < steps; i++) {
    const began = performance.now();
    if (act === "scroll") scroll.scrollTop = (i + 1) * 911;
    else { search.value = "many" + (i % 5); search.dispatchEvent(new Event("input")); }
    await frame();
    await frame();
    times.push((performance.now() - began) / 2);
  }
  return times;
}"""

_TIMELINE_FRAMES = """async ({steps, act}) => {
  const canvas = document.querySelector("canvas.lanes"), times = [];
  const { left, top, width } = canvas.getBoundingClientRect();
  const frame = () => new Promise((resolve) => requestAnimationFrame(resolve));
  const wheel = (i) => canvas.dispatchEvent(new WheelEvent("wheel", { ctrlKey: true, cancelable: true, bubbles: true,
    deltaY: i % 8 < 4 ? -1 : 1, clientX: left + 0.6 * width, clientY: top + 100 }));
  await frame();
  for (let i = 0; i < steps; i++) {
    const began = performance.now();
    if (act === "zoom") wheel(i); else scrollTo(0, 31 * (i + 1));
    await frame();
    await frame();
    times.push((performance.now() - began) / 2);
  }
  return times;
}"""


# Runs before the page's own script. The view is complete when its tiles are there and both charts are drawn, which
# happens in one turn; Chromium's element timing says when that was on the screen.
_FIRST_VIEW = """
window.firstView = {};
const shown = new PerformanceObserver((list) => { firstView.shown ??= list.getEntries()[0].renderTime; });
shown.observe({ type: "element" });
const seen = new MutationObserver(() => {
  const tile = document.querySelector(".tile dd"), charts = [...document.querySelectorAll("canvas.chart[aria-label]")];
  if (!tile || charts.length < 2) return;
  seen.disconnect();
  firstView.complete = performance.now();
  tile.setAttribute("elementtiming", "first view");
});
seen.observe(document, { subtree: true, childList: true, attributes: true });
"""
_ANSWERED = """() => {
  const { responseEnd } = performance.getEntriesByType("navigation")[0];
  return firstView.shown === undefined ? null : [firstView.complete - responseEnd, firstView.shown - responseEnd];
}"""


def main() -> None:
    """Measure what the arguments name, by default everything, and print one figure a line."""
    chosen = sys.argv[1:] or list(FIGURES)
    if unknown := [name for name in chosen if name not in FIGURES]:
        raise SystemExit(f"{unknown[0]}: choose from {', '.join(FIGURES)}")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        cluster = LiveCluster(Path(folder) / "home")
        cluster.start()
        found = shutil.which("chromium")
        assert found, "no Chromium: apt-get install chromium"
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            token = cluster.shoal("token", "create", "root", "--role", "admin")
            for name in chosen:
                FIGURES[name](browser, cluster, token)
        finally:
            browser.close()
            cluster.stop()


def first_view(browser: Browser, cluster: LiveCluster, _: str) -> None:
    """Print when the whole first view is on the screen after the document's last byte, with an empty cache."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(cluster.link())
    page.locator(".tile").first.wait_for()
    logged_in = context.storage_state()
    context.close()
    ways: tuple[tuple[str, Any], ...] = (("logged in", logged_in), ("by a link of shoal web", None))
    for what, state in ways:
        found = [_first_view(browser, cluster.link() if state is None else cluster.url, state) for _ in range(REPEATS)]
        built, shown = (sorted(times) for times in zip(*(times for times, _, _ in found), strict=True))
        requests, size = found[-1][1:]
        print(
            f"first view, {what}: on the screen {statistics.median(shown):.0f} ms after the document's last byte "
            f"(median of {REPEATS}; {shown[0]:.0f} to {shown[-1]:.0f}), built after {statistics.median(built):.0f} ms; "
            f"{requests} requests, {size:,} bytes"
        )


def _first_view(browser: Browser, address: str, state: Any) -> tuple[list[float], int, int]:
    context = browser.new_context(storage_state=state)
    context.add_init_script(_FIRST_VIEW)
    page = context.new_page()
    sizes: list[int] = []
    page.on("response", lambda answer: sizes.append(int(answer.headers.get("content-length", 0))))
    page.goto(address)
    times: list[float] | None = None
    for _ in range(100):
        time.sleep(0.2)  # asking more often would slow the page down
        times = page.evaluate(_ANSWERED)
        if times is not None:
            break
    context.close()
    assert times is not None, "no first view within 20 s"
    return times, len(sizes), sum(sizes)


def updates(browser: Browser, cluster: LiveCluster, token: str) -> None:
    """Print how long after its submission a job is in the list."""
    page = _page(browser, cluster, "queue")
    seconds = []
    for number in range(8):
        began = time.monotonic()
        made = cluster.call("POST", "/v1/jobs", token, {"command": ["true"], "name": f"new{number}", "hold": True})
        page.get_by_role("row").filter(has_text=made["jobs"][0]).wait_for()
        seconds.append(time.monotonic() - began)
        time.sleep(0.3)
    print(f"a submission is seen after {statistics.median(seconds):.2f} s (median of 8), {max(seconds):.2f} s at most")
    page.context.close()


def watchers(_: Browser, cluster: LiveCluster, token: str) -> None:
    """Print what the control plane costs with and without pages that are open, while jobs run and end."""
    tokens = [
        cluster.shoal("token", "create", f"user{i}", "--role", "user", "--tenant", f"tenant{i}")
        for i in range(-(-PAGES // STREAMS_PER_TENANT))
    ]
    stop = threading.Event()
    feeding = threading.Thread(target=_feed, args=(cluster, token, stop), daemon=True)
    feeding.start()
    time.sleep(3.0)
    alone = _share_of_a_core(cluster)
    ends = [
        threading.Thread(target=_watch, args=(cluster, tokens[i // STREAMS_PER_TENANT], i, stop)) for i in range(PAGES)
    ]
    for end in ends:
        end.start()
    time.sleep(3.0)
    watched = _share_of_a_core(cluster)
    stop.set()
    print(f"control plane: {alone:.1%} of a core without pages, {watched:.1%} with {PAGES} open")
    for end in [feeding, *ends]:
        end.join(10)


def _feed(cluster: LiveCluster, token: str, stop: threading.Event) -> None:
    while not stop.wait(1.0):
        cluster.call("POST", "/v1/jobs", token, {"command": ["sleep", "3"], "name": "fed"})


def _watch(cluster: LiveCluster, token: str, number: int, stop: threading.Event) -> None:
    # An address may have 64 connections.
    source = (f"127.0.1.{1 + number // STREAMS_PER_TENANT}", 0)
    connection = http.client.HTTPConnection("127.0.0.1", cluster.port, timeout=5, source_address=source)
    headers = {"Authorization": f"Bearer {token}"}
    connection.request("GET", "/v1/watch?views=cluster,nodes,jobs", headers=headers)
    answer = connection.getresponse()
    assert answer.status == 200, answer.read()
    while not stop.is_set():
        try:
            answer.readline()
        except TimeoutError:
            continue
    connection.close()


def _share_of_a_core(cluster: LiveCluster) -> float:
    pid = cluster.pid
    before, began = _cpu_seconds(pid), time.monotonic()
    time.sleep(WATCH_SECONDS)
    return (_cpu_seconds(pid) - before) / (time.monotonic() - began)


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def many_jobs(browser: Browser, cluster: LiveCluster, token: str) -> None:
    """Print the time of a frame while a list of many jobs is scrolled and searched."""
    for part in range(5):
        one = {"command": ["true"], "name": f"many{part}", "gpus": 4, "hold": True}
        cluster.call("POST", "/v1/jobs/batch", token, {"jobs": [one] * (JOBS // 5)})
    page = _page(browser, cluster, "queue")
    page.locator(".total", has_text="10,0").wait_for(timeout=60_000)
    page.wait_for_timeout(3000)
    for act in ("scroll", "search"):
        times: list[Any] = page.evaluate(_FRAMES, {"steps": 60, "act": act})
        print(f"{JOBS:,} jobs, {act}: a frame takes {statistics.median(times):.0f} ms, {max(times):.0f} ms at most")
    page.context.close()


def timeline(browser: Browser, cluster: LiveCluster, _: str) -> None:
    """Print the time of a frame while a timeline of many runs is zoomed and scrolled, on two sizes of cluster."""
    for nodes in (4, 250):
        lanes, seconds = 8 * nodes, 54_000  # of the day shown, 15.6 hours have passed
        began, length = time.time() - seconds, seconds * lanes / RUNS
        names = [f"node-{i:03d}" for i in range(nodes)]
        seats = {
            str(i): {"job": f"run-{i}", "tenant": f"tenant{i % 7}", "run": 1, "node": names[i // 8 % nodes], "gpus": 1,
                     "began": began + length * (i // lanes), "ended": began + length * (i // lanes + 1)}
            for i in range(RUNS)
        }  # fmt: skip
        page = _page(browser, cluster, "queue")
        show(page, "timeline", {"nodes": {name: node_row(name) for name in names}, "running": {}, "seats": seats})
        page.get_by_role("button", name="24 h").click()
        page.locator(".total", has_text=f"{RUNS:,} runs").wait_for(timeout=60_000)
        page.wait_for_timeout(3000)
        for act in ("zoom", "scroll"):
            times: list[float] = page.evaluate(_TIMELINE_FRAMES, {"steps": 40, "act": act})
            print(
                f"{RUNS:,} runs on {lanes:,} GPUs, {act}: a frame takes {statistics.median(times):.0f} ms, "
                f"{max(times):.0f} ms at most"
            )
        page.context.close()


def _page(browser: Browser, cluster: LiveCluster, view: str) -> Page:
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.goto(cluster.link())
    page.locator(".tile").first.wait_for()
    page.goto(f"{cluster.url}#/{view}")
    page.locator("main.view h1").wait_for()
    return page


FIGURES = {
    "first-view": first_view,
    "updates": updates,
    "watchers": watchers,
    "many-jobs": many_jobs,
    "timeline": timeline,
}


if __name__ == "__main__":
    main()
