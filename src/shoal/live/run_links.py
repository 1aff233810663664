"""Links to a job's run in Weights & Biases or MLflow, from its environment and from its trainer library."""

from collections.abc import Iterable, Mapping
from urllib.parse import quote, urlsplit

_MOST = 4
_WANDB = "https://wandb.ai"


def run_links(env: Iterable[tuple[str, str]], reported: Iterable[str] = ()) -> list[str]:
    """Return the links, each once and at most four: only addresses that a browser opens by http or https."""
    given = dict(env)
    found = [*_named(given), *reported]
    return list(dict.fromkeys(link for link in found if _is_web(link)))[:_MOST]


def _named(env: Mapping[str, str]) -> list[str]:
    links = []
    wandb = [env.get(f"WANDB_{name}", "") for name in ("ENTITY", "PROJECT", "RUN_ID")]
    if all(wandb):
        entity, project, run = (quote(part, safe="") for part in wandb)
        links.append(f"{env.get('WANDB_BASE_URL', _WANDB).rstrip('/')}/{entity}/{project}/runs/{run}")
    server, run = env.get("MLFLOW_TRACKING_URI", ""), env.get("MLFLOW_RUN_ID", "")
    if server and run:
        experiment = quote(env.get("MLFLOW_EXPERIMENT_ID", "0"), safe="")
        links.append(f"{server.rstrip('/')}/#/experiments/{experiment}/runs/{quote(run, safe='')}")
    return links


def _is_web(link: str) -> bool:
    try:
        parts = urlsplit(link)
    except ValueError:
        return False
    plain = link.isprintable() and " " not in link and len(link) <= 2000 and parts.username is None
    return plain and parts.scheme in ("http", "https") and bool(parts.hostname)
