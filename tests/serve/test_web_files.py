"""The page is small, needs nothing from elsewhere, and no string can become a script in it."""

import re
from importlib import resources
from typing import TYPE_CHECKING

import pytest

from shoal.serve.web_files import web_files

if TYPE_CHECKING:
    from tests.serve.conftest import Harness

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8", "Accept-Encoding": "gzip"}


def test_browsers_get_the_page_at_the_root_and_other_callers_json(harness: "Harness") -> None:
    page = harness.call("GET", "/", None, headers=BROWSER)
    assert page.status_code == 200
    assert page.text.startswith("<!doctype html>")
    api = harness.call("GET", "/", None, headers={"Accept": "*/*"})
    assert (api.status_code, api.json()["error"]) == (404, "there is nothing here")
    assert harness.call("POST", "/", None, headers=BROWSER).status_code == 404


def test_nothing_but_the_servers_own_files_may_run_or_load(harness: "Harness") -> None:
    policy = harness.call("GET", "/", None, headers=BROWSER).headers["Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert {rules[name] for name in ("script-src", "style-src", "connect-src", "img-src")} == {"'self'"}
    assert {rules[name] for name in ("base-uri", "form-action", "frame-ancestors")} == {"'none'"}
    assert rules["require-trusted-types-for"] == "'script'"


@pytest.mark.parametrize("name", sorted(web_files()))
def test_each_file_is_served_compressed_and_revalidated(harness: "Harness", name: str) -> None:
    answer = harness.call("GET", f"/web/{name}", None, headers=BROWSER)
    assert answer.status_code == 200
    assert answer.content == web_files()[name].plain
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    again = harness.call("GET", f"/web/{name}", None, headers={**BROWSER, "If-None-Match": answer.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["nothing.js", "../tokens.py", "..%2ftokens.py", "__init__.py"])
def test_no_other_file_is_served(harness: "Harness", name: str) -> None:
    assert harness.call("GET", f"/web/{name}", None, headers=BROWSER).status_code == 404


def test_the_page_is_small() -> None:
    assert sum(len(file.packed) for file in web_files().values()) < 60_000


@pytest.mark.parametrize("name", sorted(name for name in web_files() if name.endswith((".js", ".html", ".css"))))
def test_no_file_makes_html_of_strings_or_names_another_host(name: str) -> None:
    text = web_files()[name].plain.decode()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function|\.srcdoc", text)
    assert not re.search(r"""https?://(?!www\.w3\.org/2000/svg)|["'(]//\w""", text)
    if name.endswith(".html"):
        assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", text)


def test_every_file_that_the_page_names_is_there() -> None:
    for name, file in web_files().items():
        for named in re.findall(r'"/web/([\w.]+)"', file.plain.decode()):
            assert named in web_files(), (name, named)


def test_the_page_calls_no_address_that_the_api_does_not_describe(harness: "Harness") -> None:
    script = web_files()["page.js"].plain.decode()
    described = {
        re.sub(r"\{\w+\}", "{}", path) for path in harness.call("GET", "/v1/openapi.json", "ana").json()["paths"]
    }
    called = {re.sub(r"\$\{[^}]*\}", "{}", path) for path in re.findall(r"""["'`](/v1/[^"'`?]*)""", script)}
    assert len(called) >= 9
    assert called - described == set()
    verbs = set(re.findall(r"\$\{path\}/(\w+)", script))
    assert verbs == {"hold", "release", "requeue", "priority"}
    assert {f"/v1/jobs/{{}}/{verb}" for verb in verbs} <= described


def test_the_page_loads_all_its_modules_by_one_request_and_its_style_by_another() -> None:
    loaded = re.findall(r'(?:src|rel="stylesheet" href)="/web/([\w.]+)"', web_files()["index.html"].plain.decode())
    assert sorted(loaded) == ["page.js", "style.css"]
    script, folder = web_files()["page.js"].plain.decode(), resources.files("shoal.serve").joinpath("web")
    modules = [entry.name.removesuffix(".js") for entry in folder.iterdir() if entry.name.endswith(".js")]
    assert "main" in modules
    for module in modules:
        assert script.count(f"const ${module} = (() => {{\n") == 1, module
    assert not re.search(r"^\s*(?://|/\*)", script, re.MULTILINE), "comments are not sent"
