"""The Prometheus endpoint says what the cluster's figures say, under names and units that follow its conventions."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.parser import text_string_to_metric_families

from shoal.research.bench.live_scale import commits

if TYPE_CHECKING:
    from tests.serve.conftest import Harness


def scrape(harness: "Harness") -> dict[str, float]:
    """Every sample by its name and labels."""
    families = text_string_to_metric_families(harness.call("GET", "/v1/metrics").text)
    samples = (sample for family in families for sample in family.samples)
    return {
        sample.name + "".join(f",{v}" for _, v in sorted(sample.labels.items())): sample.value for sample in samples
    }


def test_the_metrics_are_the_control_planes_figures(harness: "Harness") -> None:
    told = scrape(harness)
    expected = {
        "shoal_jobs,running": 2,
        "shoal_jobs,pending": 1,
        "shoal_gpus_up,v100": 6,
        "shoal_gpus_used,v100": 4,
        "shoal_gpu_utilization_ratio": 0.5,
        "shoal_nodes,up": 2,
        "shoal_nodes,down": 1,
        "shoal_decisions_total": 7,
        "shoal_jobs_submitted_total": 9,
        "shoal_jobs_completed_total": 4,
        "shoal_job_restarts_total": 3,
        "shoal_job_crashes_total": 1,
        "shoal_job_lost_gpu_seconds_total": 1.5,
        "shoal_tenant_gpus,ana": 3,
        "shoal_tenant_gpu_seconds_total,bo": 20,
        "shoal_tenant_gpu_share_ratio,ana": 0.75,
        "shoal_tenant_gpu_time_share_ratio,bo": 0.4,
        "shoal_tenant_fairness_ratio": 16 / (2 * 10),  # 3 and 1 GPUs; who has no job is not in it
        "shoal_decision_duration_seconds_count": 2,
        "shoal_journal_commit_duration_seconds_count": 1,
    }
    assert {name: told.get(name) for name in expected} == expected


def test_times_add_up_from_scrape_to_scrape(harness: "Harness") -> None:
    first, second = scrape(harness), scrape(harness)
    assert (first["shoal_decision_duration_seconds_count"], second["shoal_decision_duration_seconds_count"]) == (2, 4)
    assert second["shoal_decision_duration_seconds_sum"] == 2 * first["shoal_decision_duration_seconds_sum"]


def test_the_bench_of_many_nodes_finds_the_commits_of_the_journal(harness: "Harness") -> None:
    text = harness.call("GET", "/v1/metrics").text
    assert commits(text.splitlines()) == {"slow_commits": 0.0, "commits": 1.0}


def test_requests_are_counted_by_route_and_never_by_what_callers_make_up(harness: "Harness") -> None:
    for path in ("/v1/jobs/hers-aaaa", "/v1/jobs/none-aaaa", "/made/up"):
        harness.call("GET", path, "ana")
    harness.call("BREW", "/v1/jobs", "ana")
    told = {name: value for name, value in scrape(harness).items() if name.startswith("shoal_http_requests_total")}
    assert told == {
        "shoal_http_requests_total,GET,/v1/jobs/{job},200": 1,
        "shoal_http_requests_total,GET,/v1/jobs/{job},404": 1,
        "shoal_http_requests_total,GET,elsewhere,404": 1,
        "shoal_http_requests_total,other,/v1/jobs,405": 1,
    }


DASHBOARD = Path(__file__).parents[2] / "docs" / "grafana" / "shoal.json"


def test_every_metric_that_the_dashboard_queries_exists(harness: "Harness") -> None:
    queried = {
        name
        for panel in json.loads(DASHBOARD.read_text())["panels"]
        for target in panel["targets"]
        for name in re.findall(r"\bshoal_\w+", target["expr"])
    }
    harness.call("GET", "/v1/jobs", "ana")
    told = {name.partition(",")[0] for name in scrape(harness)}
    assert len(queried) > 15
    assert queried - told == set()


def test_names_have_base_units_and_counters_end_in_total(harness: "Harness") -> None:
    families = list(text_string_to_metric_families(harness.call("GET", "/v1/metrics").text))
    assert {f.name for f in families if not re.fullmatch(r"shoal(_[a-z]+)+", f.name)} == set()
    for family in families:
        assert not re.search(r"_(ms|milliseconds|minutes|hours|percent|count|total)$", family.name)
        assert family.type != "counter" or all(s.name.endswith(("_total", "_created")) for s in family.samples)
