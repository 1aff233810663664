"""Running on a socket: loopback, TLS by files, refusals by name, and a signal that stops it and nothing else."""

import logging
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from shoal.core.errors import InputError
from shoal.serve import Listening, serve

if TYPE_CHECKING:
    from tests.serve.conftest import Harness, Serving


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl program to make a certificate")
    folder = tmp_path_factory.mktemp("tls")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    made = [
        openssl,
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
    ]
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, *names, "-keyout", key, "-out", cert], check=True, capture_output=True)
    return cert, key


def test_it_speaks_tls_with_the_certificate_it_was_given(
    serving: "Serving", certificate: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = certificate
    server = serving(certfile=cert, keyfile=key, host="0.0.0.0")
    trusting = ssl.create_default_context(cafile=cert)
    url = f"https://127.0.0.1:{server.port}/v1/healthz"
    assert server.url.startswith("https://")
    assert httpx.get(url, verify=trusting).json() == {"version": "1.2"}
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
    assert "in the clear" not in caplog.text


def test_a_certificate_or_key_that_cannot_serve_is_named(
    harness: "Harness", certificate: tuple[str, str], tmp_path: Path
) -> None:
    cert, key = certificate
    junk = tmp_path / "junk.pem"
    junk.write_text("not a certificate")
    cases: list[tuple[dict[str, Any], str, str | None]] = [
        ({"certfile": cert}, "keyfile", None),
        ({"keyfile": key}, "certfile", None),
        ({"certfile": str(tmp_path / "none"), "keyfile": key}, "certfile", str(tmp_path / "none")),
        ({"certfile": cert, "keyfile": str(tmp_path / "none")}, "keyfile", str(tmp_path / "none")),
        ({"certfile": str(junk), "keyfile": key}, "certfile", str(junk)),
        ({"certfile": cert, "keyfile": str(junk)}, "certfile", cert),
    ]
    for given, field, value in cases:
        with pytest.raises(InputError) as refused:
            serve(harness.app, **given)
        assert (refused.value.field, refused.value.value) == (field, value)


def test_a_port_that_is_taken_and_a_host_that_is_not_ours_are_bad_input(harness: "Harness") -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(InputError, match="port"):
        serve(harness.app, port=taken.getsockname()[1])
    with pytest.raises(InputError, match="host"):
        serve(harness.app, host="no.such.host.invalid")


def test_binding_elsewhere_without_tls_is_warned_of_and_loopback_is_not(
    serving: "Serving", caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert serving().url.startswith("http://127.0.0.1:")
    assert "in the clear" not in caplog.text
    serving(host="0.0.0.0")
    assert "in the clear" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_server_and_leaves_the_rest_to_the_caller(harness: "Harness", number: int) -> None:
    seen: list[int] = []

    def listening(server: Listening) -> None:
        def ask() -> None:
            seen.append(httpx.get(f"{server.url}/v1/healthz").status_code)
            os.kill(os.getpid(), number)

        threading.Thread(target=ask).start()

    before = signal.getsignal(number)
    serve(harness.app, listening=listening)
    assert seen == [200]
    assert signal.getsignal(number) is before


def test_an_oversized_upload_over_a_socket_gets_its_answer(harness: "Harness", serving: "Serving") -> None:
    server = serving()
    headers = {"Authorization": f"Bearer {harness.secrets['ana']}", "Content-Type": "application/json"}
    answers = [
        httpx.post(f"{server.url}/v1/jobs", content=content, headers=headers)
        for content in (b" " * (3 << 20), iter([b" " * (1 << 20)] * 3))
    ]
    assert [(answer.status_code, answer.json()["field"]) for answer in answers] == [(413, "body"), (413, "body")]


def test_a_request_that_outlasts_the_grace_at_shutdown_is_cut_off_and_leaves_no_traceback(
    harness: "Harness", caplog: pytest.LogCaptureFixture
) -> None:
    rest: list[bytes] = []
    held: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def listening(server: Listening) -> None:
        connection = socket.create_connection(("127.0.0.1", server.port))
        held.append(connection)
        token = harness.secrets["ana"]
        head = f"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        connection.sendall(f"{head}Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{{".encode())

        def stop_when_read() -> None:
            while httpx.get(f"{server.url}/v1/healthz").status_code != 200:
                pass
            server.stop()
            rest.append(connection.recv(1000))

        threads.append(threading.Thread(target=stop_when_read))
        threads[0].start()

    with caplog.at_level(logging.WARNING):
        serve(harness.app, listening=listening)
    threads[0].join()
    held[0].close()
    assert rest == [b""], "closed without an answer"
    assert "graceful shutdown exceeded" in caplog.text, "it was cancelled"
    assert not [record for record in caplog.records if record.exc_info]
