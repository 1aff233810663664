"""The connection to Ray's bridge: answers, refusals, silence and death, with a bridge of a few lines."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shoal.provider.protocol import EngineAway, EngineRefusal
from shoal.provider.ray.connection import BridgeConnection, bridge_environment

BRIDGE = """
import json, os, sys, time
print("started", file=sys.stderr, flush=True)
connect = sys.argv[1]
if connect == "never":
    time.sleep(600)
print(json.dumps({connect: "as said"}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if asked["do"] == "die":
        os._exit(1)
    if asked["do"] == "hang":
        time.sleep(600)
    refused = asked["do"] == "refuse"
    print(json.dumps({"refused": "a reason"} if refused else {"answer": [os.getpid(), asked]}), flush=True)
"""


@contextmanager
def bridge(folder: Path, connect: str = "answer") -> Iterator[BridgeConnection]:
    made = BridgeConnection([sys.executable, "-I", "-S", "-c", BRIDGE, connect], {}, folder / "log")
    try:
        yield made
    finally:
        made.close()


def test_a_bridge_answers_refuses_and_is_started_again_when_it_hangs_or_dies(tmp_path: Path) -> None:
    with bridge(tmp_path) as connection:
        connection.connect(60.0)
        first, asked = connection.call("list", 60.0, name="n1")
        assert asked == {"do": "list", "name": "n1"}
        with pytest.raises(EngineRefusal, match="a reason"):
            connection.call("refuse", 60.0)
        assert connection.call("list", 60.0)[0] == first
        with pytest.raises(EngineAway, match="did not answer within 0 s"):
            connection.call("hang", 0.1)
        connection.connect(60.0)
        second, _ = connection.call("list", 60.0)
        with pytest.raises(EngineAway, match=f"see {tmp_path}/log"):
            connection.call("die", 60.0)
        connection.connect(60.0)
        assert len({first, second, connection.call("list", 60.0)[0]}) == 3


def test_a_bridge_that_has_not_connected_yet_is_waited_for_and_not_started_again(tmp_path: Path) -> None:
    with bridge(tmp_path, "never") as connection:
        for _ in range(2):
            with pytest.raises(EngineAway, match="has not answered yet"):
                connection.connect(0.5)
        assert (tmp_path / "log").read_text().count("started") == 1


def test_the_error_of_a_bridge_that_cannot_connect_has_its_reason(tmp_path: Path) -> None:
    with bridge(tmp_path, "refused") as connection, pytest.raises(EngineAway, match="as said"):
        connection.connect(60.0)
    with pytest.raises(EngineAway, match="/no/python cannot be run: No such file"):
        BridgeConnection(["/no/python"], {}, tmp_path / "log").connect(1.0)


def test_a_bridge_gets_no_variable_of_shoal_and_keeps_a_loopback_address() -> None:
    given = {"SHOAL_TOKEN": "secret", "PATH": "/bin"}
    assert bridge_environment("10.0.0.1:1", given) == {"PATH": "/bin", "RAY_USAGE_STATS_ENABLED": "0"}
    assert bridge_environment("127.0.0.1:1", given)["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] == "0"
