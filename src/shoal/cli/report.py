"""``shoal report``: compare finished runs, or list what happened to the jobs of a live cluster."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import click

from shoal.cli.output import json_option, print_json, say, terminal, warn
from shoal.cli.replay import in_turn
from shoal.core.errors import InputError


@click.command()
@click.argument("directories", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--html",
    "html_path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write a page of the runs, one file.",
)
@click.option("--serve", "served", is_flag=True, help="Serve that page on this machine until interrupted.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of --serve; any free one by default.")
@click.option("--baseline", metavar="POLICY", help="Compare with this policy; the first one by default.")
@json_option
def report(
    directories: tuple[Path, ...], html_path: Path | None, served: bool, port: int, baseline: str | None, as_json: bool
) -> None:
    """Compare finished runs in tables and on a page, or list what happened to each job of a live cluster.

    The page has the views of the cluster's page for each run: the map over time, queue, timeline, jobs and fairness.
    """
    from shoal.report.compare import compare
    from shoal.report.files import find_runs, is_home
    from shoal.report.tables import table

    homes = [directory for directory in directories if is_home(directory)]
    if homes:
        if len(homes) < len(directories) or html_path is not None or served or baseline is not None:
            hint = "is the home of a live cluster, reported job by job; name only such, and no option but --json"
            raise InputError("run", str(homes[0]), hint)
        _print_stories(homes, as_json)
        return
    runs = find_runs(directories)
    comparisons = compare(runs, baseline)
    if html_path is not None or served:
        from shoal.report.run_page import page, save_page
        from shoal.scenario.replay import reason_changes

        made = page(runs, baseline, reason_changes)
        if html_path is not None:
            save_page(made, html_path)
            warn(f"wrote {html_path}")
    if as_json:
        print_json([c.as_dict() for c in comparisons])
    else:
        for comparison in comparisons:
            terminal().print(table(comparison))
    if served:
        _serve(made.encode(), port)


def _serve(content: bytes, port: int) -> None:
    """Answer every request with the page until interrupted."""
    from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path.split("?")[0] == "/"
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(content) if found else 0))
            self.end_headers()
            self.wfile.write(content if found else b"")

        def log_message(self, format: str, *args: object) -> None:
            """Write nothing."""

    try:
        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    except OSError as error:
        raise InputError("port", str(port), f"cannot be listened on: {error.strerror or error}") from error
    warn(f"the page is at http://127.0.0.1:{server.server_address[1]}/ until this command is interrupted (Ctrl-C)")
    with server, suppress(KeyboardInterrupt):
        server.serve_forever()


def _print_stories(homes: Sequence[Path], as_json: bool) -> None:
    from shoal.scenario.replay import policies_of, read_stories

    found = {home: read_stories(home) for home in homes}
    if as_json:
        rows = [
            {
                "home": str(home),
                "jobs": [story.document() for story in stories],
                "decides_otherwise": difference or None,
            }
            for home, (stories, difference) in found.items()
        ]
        print_json(rows)
        return
    for home, (stories, difference) in found.items():
        policy = in_turn(policies_of(home))
        count = f"{len(stories)} job{'s' * (len(stories) != 1)}"
        say(f"{home}: {count} under {policy}; times since the journal began")
        for story in stories:
            first, *rest = story.lines()
            say("\n    ".join([f"  {first}", *rest]))
        if difference:
            warn(f"{home}: the reasons for waiting end where they cannot be derived again: {difference}")
