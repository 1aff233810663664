"""A Kubernetes API server in memory, with a scheduler: the behaviour that `test_kubernetes_api` has in its table.

Objects have versions; lists and watches take label and field selectors; a watch resumes from a version, or gets 410 if
that was forgotten; pods are deleted gracefully. The scheduler knows GPUs, affinity, taints and cordons, and says why a
pod cannot be scheduled. `fake_kubelet` runs pods as processes. `rules` are the rights of the caller, and `used` has
those that it needed.
"""

import copy
import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlsplit

from tests.provider.kubernetes_schema import problems

GPU = "nvidia.com/gpu"
Json = dict[str, Any]
Key = tuple[str, str, str]
"""Resource with its group, e.g. ``pods`` or ``kueue.x-k8s.io/workloads``; namespace; name."""


class Kubelet(Protocol):
    """Runs the pods that were bound to nodes. Called with the API server's lock held."""

    def sync(self, pod: Json) -> None:
        """Start a pod that has a node, if it can be started."""
        ...

    def stop(self, pod: Json, grace: float) -> None:
        """Warn a pod, and kill it after ``grace`` seconds."""
        ...


class Refusal(Exception):
    """An answer other than success."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        self.code = code
        self.status: Json = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message}
        super().__init__(message)


@dataclass
class FakeKubernetes:
    """The objects, and what may be done with them."""

    kubelet: Kubelet | None = None
    objects: dict[Key, Json] = field(default_factory=dict)
    log: list[tuple[int, str, str, Json]] = field(default_factory=list)
    """Version, resource, type and object of each change since ``oldest``."""
    version: int = 100
    oldest: int = 100
    rules: set[tuple[str, str, str]] | None = None
    """Namespace or ``*``, resource and verb of what the caller may do; None for everything."""
    used: set[tuple[str, str, str]] = field(default_factory=set)
    requests: list[tuple[str, str]] = field(default_factory=list)
    is_away: bool = False
    refuses_old: bool = False
    """Whether a watch from a forgotten version is answered with HTTP's 410, not with an event."""
    absences: int = 0
    """How many times the server went away; a watch from before the last time has ended."""
    changed: threading.Condition = field(default_factory=threading.Condition)

    # --- for tests

    def add_node(self, name: str, gpus: int, product: str = "Tesla-V100-SXM2-16GB", **labels: str) -> None:
        ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
        shown = {"pool": "gpu", "kubernetes.io/hostname": name, "nvidia.com/gpu.product": product, **labels}
        status = {"allocatable": {"cpu": "8", **({GPU: str(gpus)} if gpus else {})}, "conditions": [ready]}
        with self.changed:
            self.create(
                ("nodes", "", name), {"metadata": {"name": name, "labels": shown}, "spec": {}, "status": status}
            )

    def change(self, key: Key, **parts: Any) -> None:
        """Merge values into an object, as its owner would: ``spec={"unschedulable": True}``."""
        with self.changed:
            for part, values in parts.items():
                self.objects[key].setdefault(part, {}).update(values)
            self._note(key, "MODIFIED")
            self.settle()

    def forget(self) -> None:
        """Forget all changes so far: a watch cannot be resumed from them."""
        with self.changed:
            self.version += 1
            self.log, self.oldest = [], self.version

    @contextmanager
    def away(self) -> Iterator[None]:
        """End all connections and answer no request within the ``with`` block."""
        with self.changed:
            self.is_away = True
            self.absences += 1
            self.changed.notify_all()
        try:
            yield
        finally:
            self.is_away = False

    # --- changes, with the lock held

    def create(self, key: Key, body: Json, *, dry: bool = False) -> Json:
        resource, namespace, name = key
        if key in self.objects:
            raise Refusal(409, "AlreadyExists", f'{resource} "{name}" already exists')
        if body["metadata"].get("namespace", namespace) != namespace:
            message = "the namespace of the provided object does not match the namespace sent on the request"
            raise Refusal(400, "BadRequest", message)
        if (found := problems(resource, body)) and resource in ("pods", "secrets"):
            raise Refusal(422, "Invalid", f'{resource} "{name}" is invalid: {found[0]}')
        made = copy.deepcopy(body)
        made["metadata"] |= {"uid": str(uuid.uuid4()), "creationTimestamp": _now()}
        if namespace:
            made["metadata"]["namespace"] = namespace
        if resource == "pods":
            made["status"] = {"phase": "Pending"}
        if not dry:
            self.objects[key] = made
            self._note(key, "ADDED")
            self.settle()
        return made

    def delete(self, key: Key, options: Json) -> Json:
        found = self._get(key)
        uid = options.get("preconditions", {}).get("uid")
        if uid is not None and uid != found["metadata"]["uid"]:
            message = f"the UID in the precondition ({uid}) does not match the UID in record"
            raise Refusal(409, "Conflict", f'Operation cannot be fulfilled on {key[0]} "{key[2]}": {message}')
        grace = options.get("gracePeriodSeconds")
        if grace is None:
            grace = found.get("spec", {}).get("terminationGracePeriodSeconds", 30)
        runs = key[0] == "pods" and found["spec"].get("nodeName") and not _ended(found)
        if runs and grace > 0:
            before = found["metadata"].get("deletionGracePeriodSeconds")
            if before is None or grace < before:
                found["metadata"] |= {"deletionTimestamp": _now(grace), "deletionGracePeriodSeconds": grace}
                self._note(key, "MODIFIED")
                if self.kubelet is not None:
                    self.kubelet.stop(found, grace)
        else:
            self.remove(key)
            if runs and self.kubelet is not None:
                self.kubelet.stop(found, 0.0)
        return found

    def remove(self, key: Key) -> None:
        """Take an object out, and what it owns."""
        gone = self.objects.pop(key, None)
        if gone is None:
            return
        self.version += 1
        gone["metadata"]["resourceVersion"] = str(self.version)
        self.log.append((self.version, key[0], "DELETED", copy.deepcopy(gone)))
        for other, one in [*self.objects.items()]:
            if any(owner["uid"] == gone["metadata"]["uid"] for owner in one["metadata"].get("ownerReferences", ())):
                self.remove(other)
        self.changed.notify_all()
        self.settle()

    def set_status(self, pod: Json, **status: Any) -> None:
        """Set parts of a pod's status, if it is still there."""
        key = ("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
        if self.objects.get(key) is pod and any(pod["status"].get(name) != value for name, value in status.items()):
            pod["status"] |= status
            self._note(key, "MODIFIED")

    def _note(self, key: Key, what: str) -> None:
        self.version += 1
        self.objects[key]["metadata"]["resourceVersion"] = str(self.version)
        self.log.append((self.version, key[0], what, copy.deepcopy(self.objects[key])))
        self.changed.notify_all()

    def _get(self, key: Key) -> Json:
        if key not in self.objects:
            raise Refusal(404, "NotFound", f'{key[0]} "{key[2]}" not found')
        return self.objects[key]

    # --- the scheduler

    def settle(self) -> None:
        """Bind pods that can be, and let the kubelet look at those that were."""
        for pod in self.pods():
            if not pod["spec"].get("nodeName"):
                self._schedule(pod)
            if pod["spec"].get("nodeName") and self.kubelet is not None:
                self.kubelet.sync(pod)

    def pods(self) -> list[Json]:
        return [one for key, one in self.objects.items() if key[0] == "pods"]

    def _schedule(self, pod: Json) -> None:
        nodes = [one for key, one in self.objects.items() if key[0] == "nodes"]
        why: dict[str, int] = {}
        for node in nodes:
            reason = self._misfit(pod, node)
            if not reason:
                pod["spec"]["nodeName"] = node["metadata"]["name"]
                self.set_status(pod, conditions=[{"type": "PodScheduled", "status": "True"}])
                return
            why[reason] = why.get(reason, 0) + 1
        counts = ", ".join(f"{count} {reason}" for reason, count in sorted(why.items()))
        message = f"0/{len(nodes)} nodes are available: {counts}. preemption: 0/{len(nodes)} nodes are available."
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        self.set_status(pod, conditions=[condition])

    def _misfit(self, pod: Json, node: Json) -> str:
        spec, labels = pod["spec"], node["metadata"]["labels"]
        required = spec.get("affinity", {}).get("nodeAffinity", {})
        required = required.get("requiredDuringSchedulingIgnoredDuringExecution", {})
        terms = required.get("nodeSelectorTerms", [{}])
        if node["spec"].get("unschedulable"):
            return "node(s) were unschedulable"
        for taint in node["spec"].get("taints", ()):
            if taint["effect"] != "PreferNoSchedule" and not _tolerated(spec.get("tolerations", ()), taint):
                return f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"
        if not any(_term_matches(term, labels, node["metadata"]["name"]) for term in terms):
            return "node(s) didn't match Pod's node affinity/selector"
        held = sum(
            _gpus(other)
            for other in self.pods()
            if other["spec"].get("nodeName") == node["metadata"]["name"] and not _ended(other)
        )
        free = int(node["status"]["allocatable"].get(GPU, "0")) - held
        return f"Insufficient {GPU}" if _gpus(pod) > free else ""

    # --- requests

    def answer(self, method: str, url: str, body: Json | None) -> tuple[int, Json]:
        """Return status and body of a request other than a watch."""
        if url == "/version":
            return 200, {"major": "1", "minor": "32", "gitVersion": "v1.32.0-fake"}
        resource, namespace, name, params = parse(url)
        verb = {"GET": "get" if name else "list", "POST": "create", "DELETE": "delete"}.get(method, method.lower())
        with self.changed:
            self.allow(namespace, resource, verb)
            if verb == "create":
                assert body is not None
                made = self.create(
                    (resource, namespace, body["metadata"]["name"]), body, dry=params.get("dryRun") == "All"
                )
                return 201, copy.deepcopy(made)
            if verb == "delete":
                return 200, copy.deepcopy(self.delete((resource, namespace, name), body or {}))
            if verb == "get":
                return 200, copy.deepcopy(self._get((resource, namespace, name)))
            if verb != "list":
                raise Refusal(405, "MethodNotAllowed", f"the fake has no {method}")
            return 200, self._list(resource, namespace, params)

    def allow(self, namespace: str, resource: str, verb: str) -> None:
        self.used.add((namespace or "*", resource, verb))
        if self.rules is not None and not {(namespace, resource, verb), ("*", resource, verb)} & self.rules:
            message = f'{resource} is forbidden: User "shoal" cannot {verb} resource "{resource}"'
            raise Refusal(403, "Forbidden", message)

    def _list(self, resource: str, namespace: str, params: dict[str, str]) -> Json:
        known = {"nodes", "pods", "secrets", *(key[0] for key in self.objects)}
        if resource not in known:
            raise Refusal(404, "NotFound", "the server could not find the requested resource")
        found = [
            copy.deepcopy(one)
            for key, one in sorted(self.objects.items())
            if key[0] == resource and namespace in ("", key[1]) and selects(params, one)
        ]
        begin, limit = int(params.get("continue", 0)), int(params.get("limit", 0)) or len(found)
        rest = {"continue": str(begin + limit)} if begin + limit < len(found) else {}
        metadata = {"resourceVersion": str(self.version), **rest}
        return {"kind": "List", "metadata": metadata, "items": found[begin : begin + limit]}

    def watch(self, url: str) -> Iterator[Json]:
        """Yield the changes from a version on, until the time is over or the server goes away."""
        resource, namespace, _, params = parse(url)
        since, ends = int(params["resourceVersion"]), time.monotonic() + float(params.get("timeoutSeconds", 60))
        absences = self.absences
        while True:
            with self.changed:
                if since < self.oldest:
                    gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
                    yield {"type": "ERROR", "object": gone}
                    return
                new = [entry for entry in self.log if entry[0] > since]
                while not new and self.absences == absences and (left := ends - time.monotonic()) > 0:
                    self.changed.wait(left)
                    new = [entry for entry in self.log if entry[0] > since]
                if not new:
                    if self.absences == absences:
                        yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self.version)}}}
                    return
            for version, changed, what, one in new:
                since = version
                place = one["metadata"].get("namespace", "")
                if changed == resource and namespace in ("", place) and selects(params, one):
                    yield {"type": what, "object": one}


def parse(url: str) -> tuple[str, str, str, dict[str, str]]:
    """Return resource, namespace, name and parameters of a URL."""
    parts = urlsplit(url)
    words = parts.path.strip("/").split("/")
    group, rest = ("", words[2:]) if words[0] == "api" else (f"{words[1]}/", words[3:])
    namespace = ""
    if rest[0] == "namespaces" and len(rest) > 2:
        namespace, rest = rest[1], rest[2:]
    return group + rest[0], namespace, rest[1] if len(rest) > 1 else "", dict(parse_qsl(parts.query))


def selects(params: dict[str, str], one: Json) -> bool:
    """Return whether an object has the labels and fields that a request selects."""
    labels = one["metadata"].get("labels", {})
    for part in filter(None, params.get("labelSelector", "").split(",")):
        key, equals, value = part.partition("=")
        if (labels.get(key) != value) if equals else (key not in labels):
            return False
    for part in filter(None, params.get("fieldSelector", "").split(",")):
        path, _, value = part.partition("=")
        at: Any = one
        for word in path.split("."):
            at = at.get(word, "")
        if at != value:
            return False
    return True


def _term_matches(term: Json, labels: dict[str, str], name: str) -> bool:
    asked: list[tuple[Json, str | None]] = [(one, name) for one in term.get("matchFields", ())]
    asked += [(one, labels.get(one["key"])) for one in term.get("matchExpressions", ())]
    return all(
        {
            "In": value in one.get("values", ()),
            "NotIn": value not in one.get("values", ()),
            "Exists": value is not None,
        }[one["operator"]]
        for one, value in asked
    )


def _tolerated(tolerations: list[Json], taint: Json) -> bool:
    return any(
        one["key"] == taint["key"]
        and one.get("effect", taint["effect"]) == taint["effect"]
        and one.get("value", taint.get("value", "")) == taint.get("value", "")
        for one in tolerations
    )


def _gpus(pod: Json) -> int:
    return sum(int(one.get("resources", {}).get("limits", {}).get(GPU, 0)) for one in pod["spec"]["containers"])


def _ended(pod: Json) -> bool:
    return pod["status"]["phase"] in ("Succeeded", "Failed")


def _now(later: float = 0.0) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + later))


@contextmanager
def served(fake: FakeKubernetes) -> Iterator[str]:
    """Serve the fake over HTTP on a free port and yield its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            """Write nothing."""

        def handle_request(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            if fake.is_away:
                self.close_connection = True
                return
            fake.requests.append((self.command, self.path))
            try:
                if self.command == "GET" and "watch=1" in self.path:
                    self._watch()
                    return
                code, answer = fake.answer(self.command, self.path, body)
            except Refusal as refusal:
                code, answer = refusal.code, refusal.status
            data = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = do_DELETE = do_PUT = do_PATCH = handle_request  # noqa: N815

        def _watch(self) -> None:
            resource, namespace, _, params = parse(self.path)
            with fake.changed:
                fake.allow(namespace, resource, "watch")
                if fake.refuses_old and int(params["resourceVersion"]) < fake.oldest:
                    raise Refusal(410, "Expired", "too old resource version")
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.close_connection = True
            with suppress(OSError):
                for event in fake.watch(self.path):
                    line = json.dumps(event).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.write(b"0\r\n\r\n")

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=lambda: server.serve_forever(0.02), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        with fake.changed:
            fake.is_away = True
            fake.absences += 1
            fake.changed.notify_all()
        server.shutdown()
        server.server_close()
        thread.join()
