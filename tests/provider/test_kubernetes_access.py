"""How the API server is found: kubeconfigs, service accounts, and what is refused with one line."""

import base64
import shutil
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.provider.kubernetes_sites import write_kubeconfig

from shoal.core.errors import InputError
from shoal.provider.kubernetes.access import find_access
from shoal.provider.kubernetes.api import Api
from shoal.provider.kubernetes.options import Place, Toleration, read_kubernetes_options
from shoal.provider.protocol import EngineAway


def test_a_kubeconfig_gives_server_token_and_namespace(tmp_path: Path) -> None:
    file = write_kubeconfig(tmp_path, {"token": "secret"})
    for access in (
        find_access(str(file), environ={}),
        find_access("", "one", environ={"KUBECONFIG": str(file), "KUBERNETES_SERVICE_HOST": "10.0.0.9"}),
    ):
        assert (access.url, access.token(), access.namespace) == ("http://10.0.0.1:6443", "secret", "team-a")
    (tmp_path / "token").write_text("first\n")
    access = find_access(str(write_kubeconfig(tmp_path, {"tokenFile": "token"})), environ={})
    (tmp_path / "token").write_text("second\n")
    assert access.token() == "second"  # read anew: tokens are replaced


def test_a_pod_uses_its_service_account_and_reads_its_token_anew(tmp_path: Path) -> None:
    for name, text in (("token", "one\n"), ("namespace", "shoal\n")):
        (tmp_path / name).write_text(text)
    (tmp_path / "ca.crt").write_text(ssl.DER_cert_to_PEM_cert(ssl.create_default_context().get_ca_certs(True)[0]))
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443", "HOSTNAME": "shoal-0"}
    access = find_access(environ=environ, pod_files=tmp_path)
    assert (access.url, access.namespace, access.pod) == ("https://[fd00::1]:443", "shoal", "shoal-0")
    (tmp_path / "token").write_text("two\n")
    assert access.token() == "two"


@pytest.mark.parametrize(
    ("user", "said"),
    [
        (
            {"exec": {"command": "aws"}},
            "user u: 'exec': runs a program to log in, which Shoal does not do; use a kubeconfig",
        ),
        ({"auth-provider": {"name": "gcp"}}, "'auth-provider': logs in by a plugin of kubectl"),
        ({"username": "ann", "password": "x"}, "'username': logs in by a password"),
    ],
)
def test_ways_to_log_in_that_shoal_has_not_are_refused_with_the_way_out(
    tmp_path: Path, user: dict[str, Any], said: str
) -> None:
    with pytest.raises(InputError) as refused:
        find_access(str(write_kubeconfig(tmp_path, user)), environ={})
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_wrong_kubeconfig_gets_an_error_of_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory: name one kubeconfig with kubeconfig=FILE"):
        find_access(str(tmp_path / "none"), environ={})
    with pytest.raises(InputError, match="context: 'two': is not among its contexts: one"):
        find_access(str(write_kubeconfig(tmp_path, {})), "two", environ={})
    file = write_kubeconfig(tmp_path, {}, {"server": "https://10.0.0.1", "certificate-authority-data": "%%%"})
    with pytest.raises(InputError, match="certificate or key that cannot be used"):
        find_access(str(file), environ={})
    (tmp_path / "config").write_text("{")
    with pytest.raises(InputError, match="is not YAML"):
        find_access(str(tmp_path / "config"), environ={})


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program to make certificates")
def test_a_client_certificate_opens_a_server_whose_authority_the_kubeconfig_names(tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    words += ["-days", "2", "-subj", "/CN=ann", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key)]
    subprocess.run([*words, "-out", str(cert)], check=True, capture_output=True, timeout=60)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            who = self.connection.getpeercert()["subject"][0][0][1]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(msgspec.json.encode({"who": who}))

        def log_message(self, *_: object) -> None:
            """Write nothing."""

    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(cert))
    tls.load_cert_chain(cert, key)
    tls.verify_mode = ssl.CERT_REQUIRED
    server = HTTPServer(("127.0.0.1", 0), Handler)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=lambda: server.serve_forever(0.02), daemon=True).start()
    try:
        cluster = {"server": f"https://127.0.0.1:{server.server_address[1]}", "certificate-authority": "cert.pem"}
        encoded = {"client-certificate": "cert.pem", "client-key-data": base64.b64encode(key.read_bytes()).decode()}
        file = write_kubeconfig(tmp_path, encoded, cluster)
        api = Api(find_access(str(file), environ={}))
        assert api.call("GET", "/version", dict) == {"who": "ann"}
        api.close()
        del cluster["certificate-authority"]
        with pytest.raises(EngineAway, match="is not trusted: self-signed certificate"):
            Api(find_access(str(write_kubeconfig(tmp_path, encoded, cluster)), environ={})).call("GET", "/x", dict)
    finally:
        server.shutdown()
        server.server_close()


def test_options_are_read_with_their_lists_and_defaults(tmp_path: Path) -> None:
    text = "mode=pilot,namespace=ml,selector=pool=gpu+zone!=b,image=me/shoal:1,tolerations=team=a:NoSchedule+spot"
    options = read_kubernetes_options(f"{text},volumes=data:/data+home:/home,priority_class=high,service_account=t")
    gpu = Toleration("nvidia.com/gpu")
    assert options.place == Place(
        *("ml", "me/shoal:1", "t", "high"),
        (gpu, Toleration("team", "a", "NoSchedule"), Toleration("spot")),
        {"/data": "data", "/home": "home"},
    )
    assert (options.mode, options.selector, options.namespaces) == ("pilot", "pool=gpu,zone!=b", ["ml"])
    assert read_kubernetes_options("", "mine").place.namespace == "mine"
    assert read_kubernetes_options("").mode == "native"
    file = tmp_path / "tenants.yaml"
    file.write_text(
        "ann: {namespace: team-a, volumes: {/data: d}, tolerations: [spot]}\nbob: {namespace: team-b, image: b:1}"
    )
    options = read_kubernetes_options(f"image=me/shoal:1,namespace=ml,tenants={file}")
    assert options.place_of("ann") == Place("team-a", "me/shoal:1", "", "", (gpu, Toleration("spot")), {"/data": "d"})
    assert options.place_of("bob") == Place("team-b", "b:1")
    assert (options.place_of("eve"), options.namespaces) == (None, ["ml", "team-a", "team-b"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("mode=both", "option mode: 'both': choose one of native, pilot"),
        ("namspace=a", "did you mean namespace"),
        ("namespace=Team_A", "option namespace: 'Team_A': must be a name of lower-case letters"),
        ("selector=a b", "option selector: 'a b': write label=value"),
        ("tolerations=a:Never", "tolerations: 'a:Never': write key, key=value or key:EFFECT"),
        ("volumes=data", "volumes: 'data': write claim:/path"),
        ("volumes=data:here", "volumes: 'data:here': must be the name of a volume claim and an absolute path"),
        ("mem_per_gpu=much", "mem_per_gpu: 'much': write a quantity such as 64Gi"),
        ("tenants=/no/such/file", "tenants: '/no/such/file': cannot be read: No such file"),
    ],
)
def test_an_option_that_is_wrong_is_named_with_the_way_out(text: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        read_kubernetes_options(text)
    assert said in str(refused.value)


def test_a_tenant_without_a_namespace_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tenants.yaml"
    for entry, said in (("ann: {}", "must name its namespace"), ("ann: {namespace: a, imag: b}", "did you mean image")):
        file.write_text(entry)
        with pytest.raises(InputError, match=said):
            read_kubernetes_options(f"tenants={file}")
