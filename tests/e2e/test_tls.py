"""TLS end to end: a control plane with a certificate, an agent and clients that trust it, and some that do not."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

_PATIENCE_SECONDS = 60.0


def make_certificate(folder: Path, name: str, address: str = "IP:127.0.0.1") -> tuple[str, str]:
    """A self-signed certificate and its key, valid for two days."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl program to make a certificate")
    certificate, key = str(folder / f"{name}.pem"), str(folder / f"{name}.key")
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", f"/CN={name}", "-addext", f"subjectAltName={address}"]
    command = [openssl, "req", "-x509", *kind, *names, "-keyout", key, "-out", certificate]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


@dataclass(frozen=True)
class Secured:
    """A control plane that serves https, and how to run further commands beside it."""

    url: str
    home: Path
    certificate: str
    start: Callable[..., "subprocess.Popen[str]"]

    def shoal(self, *command: str, cafile: str | None, server: str | None = None) -> tuple[int, str, str]:
        """Run a command to its end, as the admin; without a file of certificates the system's are trusted."""
        token = (self.home / "admin.token").read_text().strip()
        environment = {"SHOAL_SERVER": server or self.url, "SHOAL_TOKEN": token, "SHOAL_HOME": str(self.home / "none")}
        process = self.start("shoal", *command, **environment, **({"SHOAL_CAFILE": cafile} if cafile else {}))
        out, err = process.communicate(timeout=_PATIENCE_SECONDS)
        return process.returncode, out, err


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("tls")
    certificate, key = make_certificate(folder, "cluster")
    plain = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
    with ExitStack() as ending:

        def start(module: str, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                env={**plain, **environment},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            ending.enter_context(process)
            ending.callback(process.terminate)
            return process

        home = folder / "home"
        where = ["--home", str(home), "--port", "0", "--certfile", certificate, "--keyfile", key, "--json"]
        plane = start("shoal", "serve", "--cluster", "gpu:1x1", *where)
        assert plane.stdout is not None
        yield Secured(json.loads(plane.stdout.readline())["server"], home, certificate, start)


def test_a_job_runs_on_a_cluster_whose_connections_are_all_encrypted(secured: Secured) -> None:
    assert secured.url.startswith("https://127.0.0.1:")
    token = ["--token-file", str(secured.home / "agents" / "gpu-0.token")]
    node = ["--node", "gpu-0", "--kind", "gpu", "--gpus", "1", "--home", str(secured.home), "--root", os.getcwd()]
    secured.start("shoal", "agent", "--server", secured.url, "--cafile", secured.certificate, *node, *token)
    code, job, _ = secured.shoal("submit", "--", "/bin/echo", "encrypted", cafile=secured.certificate)
    assert code == 0
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        found = json.loads(secured.shoal("job", job.strip(), "--json", cafile=secured.certificate)[1])
        if found["job"]["ended"] is not None or found["crashes"]:
            break
    assert (found["job"]["state"], found["job"]["reason"]) == ("completed", "completed")
    assert secured.shoal("logs", job.strip(), cafile=secured.certificate)[1] == "encrypted\n"


@pytest.mark.parametrize("trusted", ["nothing", "another certificate", "a certificate for another address"])
def test_a_certificate_that_is_not_trusted_is_refused_with_one_line(
    secured: Secured, trusted: str, tmp_path: Path
) -> None:
    cafile = None if trusted == "nothing" else make_certificate(tmp_path, "other", "IP:192.0.2.1")[0]
    code, out, err = secured.shoal("queue", cafile=cafile)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"shoal: the certificate of {secured.url} is not trusted: ")
    assert err.endswith("in SHOAL_CAFILE\n")


def test_an_agent_that_does_not_trust_the_certificate_ends_with_one_line(secured: Secured, tmp_path: Path) -> None:
    other, _ = make_certificate(tmp_path, "other")
    (tmp_path / "token").write_text("shoal_whatever\n")
    token = ["--token-file", str(tmp_path / "token")]
    node = ["--node", "gpu-9", "--kind", "gpu", "--gpus", "1", "--home", str(tmp_path)]
    agent = secured.start("shoal", "agent", "--server", secured.url, "--cafile", other, *node, *token)
    _, err = agent.communicate(timeout=_PATIENCE_SECONDS)
    assert agent.returncode == 2
    assert [line for line in err.splitlines() if "is not trusted" in line] == err.splitlines()[-1:]


def test_plain_http_to_an_encrypted_port_is_refused_with_one_line(secured: Secured) -> None:
    plain = secured.url.replace("https", "http")
    code, out, err = secured.shoal("queue", cafile=None, server=plain)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert f"cannot reach {plain}" in err


def test_connections_without_a_handshake_shut_no_caller_out(secured: Secured) -> None:
    port = int(secured.url.rpartition(":")[2])
    with ExitStack() as opened:
        held = [
            opened.enter_context(socket.create_connection(("127.0.0.1", port), timeout=_PATIENCE_SECONDS))
            for _ in range(100)
        ]
        assert secured.shoal("queue", cafile=secured.certificate)[0] == 0
        assert [connection.recv(1) for connection in held[:30]] == [b""] * 30, "the oldest made room"
