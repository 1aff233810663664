"""Runs the pods of `fake_kubernetes` as processes of this machine, each container's command in a session of its own.

A mounted secret is a folder of files; its path stands in the arguments in place of the mount path. The image, other
volumes and the user are ignored.
"""

import os
import signal
import subprocess
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.provider.fake_kubernetes import FakeKubernetes, Json


@dataclass
class ProcessKubelet:
    """The kubelet of all nodes; files of pods go under ``folder``."""

    folder: Path
    api: FakeKubernetes = field(default_factory=FakeKubernetes)
    processes: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)
    """By uid of a pod."""
    cut_off: set[str] = field(default_factory=set)
    """Nodes whose kubelet does not hear of changes."""
    _threads: list[threading.Thread] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.api.kubelet = self

    def sync(self, pod: Json) -> None:
        uid = pod["metadata"]["uid"]
        if uid in self.processes or pod["spec"]["nodeName"] in self.cut_off or pod["status"]["phase"] != "Pending":
            return
        files = self.folder / uid
        secret = self._mount_secrets(pod, files)
        if secret is None:
            waiting = {"state": {"waiting": {"reason": "ContainerCreating"}}}
            self.api.set_status(pod, containerStatuses=[waiting])
            return
        container = pod["spec"]["containers"][0]
        values = {one["name"]: _value(one) for one in container.get("env", ())}
        words = [
            _expanded(word, values, secret) for word in (*container.get("command", ()), *container.get("args", ()))
        ]
        with (self.folder / f"{pod['metadata']['name']}.log").open("ab") as out:
            process = subprocess.Popen(
                words,
                env={"PATH": os.environ["PATH"], "HOME": str(files), "NVIDIA_VISIBLE_DEVICES": "GPU-1", **values},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )
        self.processes[uid] = process
        self.api.set_status(pod, phase="Running", podIP="127.0.0.1", containerStatuses=[{"state": {"running": {}}}])
        thread = threading.Thread(target=self._wait, args=(pod, process), daemon=True)
        thread.start()
        self._threads.append(thread)

    def _mount_secrets(self, pod: Json, files: Path) -> dict[str, str] | None:
        """Write the secrets of a pod to files; return the folders by mount path, None if one is missing."""
        files.mkdir(exist_ok=True)
        names = {one["name"]: one["secret"] for one in pod["spec"].get("volumes", ()) if "secret" in one}
        paths: dict[str, str] = {}
        for mount in pod["spec"]["containers"][0].get("volumeMounts", ()):
            source = names.get(mount["name"])
            if source is None:
                continue
            secret = self.api.objects.get(("secrets", pod["metadata"]["namespace"], source["secretName"]))
            if secret is None:
                return None
            folder = files / mount["name"]
            folder.mkdir(exist_ok=True)
            for name, value in secret["stringData"].items():
                (folder / name).write_text(value)
                (folder / name).chmod(source.get("defaultMode", 0o644))
            paths[mount["mountPath"]] = str(folder)
        return paths

    def _wait(self, pod: Json, process: "subprocess.Popen[bytes]") -> None:
        code = process.wait()
        with suppress(ProcessLookupError):  # what the container leaves ends with it
            os.killpg(process.pid, signal.SIGKILL)
        key = ("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
        with self.api.changed:
            if pod["spec"]["nodeName"] in self.cut_off:
                return
            end = {"terminated": {"exitCode": code if code >= 0 else 128 - code, "reason": "Error" * bool(code)}}
            self.api.set_status(pod, phase="Failed" if code else "Succeeded", containerStatuses=[{"state": end}])
            if "deletionTimestamp" in pod["metadata"] and self.api.objects.get(key) is pod:
                self.api.remove(key)
            self.api.settle()

    def stop(self, pod: Json, grace: float) -> None:
        process = self.processes.get(pod["metadata"]["uid"])
        key = ("pods", pod["metadata"]["namespace"], pod["metadata"]["name"])
        if pod["spec"]["nodeName"] in self.cut_off:
            return
        if process is None:
            self.api.remove(key)
        elif not grace:
            _signal(process, signal.SIGKILL)
        else:
            process.terminate()  # the container's first process alone
            timer = threading.Timer(grace, _signal, (process, signal.SIGKILL))
            timer.daemon = True
            timer.start()

    def end(self) -> None:
        """Kill all processes and wait for them; none is started from now on."""
        with self.api.changed:
            self.api.kubelet = None
        for process in self.processes.values():
            _signal(process, signal.SIGKILL)
        for thread in self._threads:
            thread.join(10.0)


def _signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def _value(one: Json) -> str:
    if "valueFrom" in one:
        assert one["valueFrom"]["fieldRef"]["fieldPath"] == "status.podIP"
        return "127.0.0.1"
    return str(one["value"])


def _expanded(word: str, values: dict[str, str], folders: dict[str, Any]) -> str:
    for name, value in values.items():
        word = word.replace(f"$({name})", value)
    for path, folder in folders.items():
        word = word.replace(path, folder)
    return word.replace("$$(", "$(")
