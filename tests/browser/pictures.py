"""Pictures of every view of a cluster's page, in both themes and at two widths: `python -m tests.browser.pictures DIR`.

A real `shoal up` of two nodes runs a training job, jobs of two tenants, one that waits, one that fails and a search.
For looking at: nothing is asserted.
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Literal

from playwright.sync_api import Browser, sync_playwright
from tests.browser.browse import SEARCH, TRAINING, VIEWS
from tests.browser.cluster import LiveCluster

_WIDTHS = {"wide": 1280, "phone": 390}
_THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
_TRAINED_SECONDS = 25.0


def _submit(cluster: LiveCluster, token: str, name: str, command: list[str], **request: Any) -> str:
    made = cluster.call("POST", "/v1/jobs", token, {"command": command, "name": name, **request})
    return str(made["jobs"][0])


def _fill(cluster: LiveCluster) -> tuple[str, dict[str, str]]:
    """Submit the jobs; return an admin's token and the pages' addresses by the name of the picture."""
    who = {name: cluster.shoal("token", "create", name, "--role", "user", "--tenant", name) for name in ("ana", "bo")}
    admin = cluster.shoal("token", "create", "root", "--role", "admin")
    script = cluster.home / "train.py"
    script.write_text(TRAINING)
    _submit(cluster, who["bo"], "typo", ["python3", "-c", "import nothing_of_this_name"])
    training = _submit(cluster, who["ana"], "resnet", [sys.executable, str(script)], work=100, grace=1)
    _submit(cluster, who["ana"], "prepare", ["sleep", "120"], work=120)
    _submit(cluster, who["bo"], "bert", ["sleep", "200"], gpus=2, work=200)
    waiting = _submit(cluster, who["bo"], "gpt", ["sleep", "90"], gpus=4, work=90)
    _submit(cluster, who["ana"], "eval", ["sleep", "20"], gpus=1)
    cluster.call("POST", "/v1/apps/sweep/search", who["ana"], SEARCH)
    cluster.call("POST", "/v1/policy/shadow", admin, {"policy": "fifo"})
    views = {view: view for view in VIEWS}
    return admin, {**views, "job-runs": f"job/{training}", "job-waits": f"job/{waiting}", "decision": "decision/2",
                   "search": "search/sweep"}  # fmt: skip


def _take(browser: Browser, cluster: LiveCluster, folder: Path) -> None:
    admin, pages = _fill(cluster)
    time.sleep(_TRAINED_SECONDS)
    for theme in _THEMES:
        for width, pixels in _WIDTHS.items():
            context = browser.new_context(color_scheme=theme, viewport={"width": pixels, "height": 844})
            page = context.new_page()
            page.goto(cluster.url)
            page.screenshot(path=folder / f"{theme}-{width}-login.png")
            page.get_by_label("Token").fill(admin)
            page.get_by_role("button", name="Log in").click()
            for name, address in pages.items():
                page.goto(f"{cluster.url}#/{address}")
                page.locator("main.view h1").wait_for()
                page.wait_for_timeout(2500)
                page.screenshot(path=folder / f"{theme}-{width}-{name}.png", full_page=True)
                print(f"{theme}-{width}-{name}.png", flush=True)
            context.close()


def main() -> None:
    """Write the pictures into the folder that the command line names."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    found = shutil.which("chromium") or sys.exit("no Chromium: apt-get install chromium")
    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        cluster = LiveCluster(Path(home) / "home")
        cluster.start()
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        try:
            _take(browser, cluster, folder)
        finally:
            browser.close()
            cluster.stop()


if __name__ == "__main__":
    main()
