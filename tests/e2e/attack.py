"""An attack on a live cluster that goes on by itself: ``python -m tests.e2e.attack --minutes 75 [--first SEED]``.

Each trial is one of ``tests.e2e.trial``: jobs, and processes that are killed, stopped and cut off, all from a seed. At
the same time the seed's attack goes on: random requests, connections that hold back, a node whose agent lies, a full or
read-only disk, a clock that jumps, jobs that fight their keeper. When it is over the guarantees are checked, and what
the processes hold. A trial that breaks one is printed with its whole story; the exit code is then 1.
"""

import argparse
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.e2e.attack_requests import Attacker
from tests.e2e.attack_site import AttackSite, held
from tests.e2e.site import DEADLINE_SECONDS
from tests.e2e.soak import policy_of
from tests.e2e.trial import GPUS, NODES, OPTIONS, Plan, Trial, Violation, Wish, ready

from shoal.core.errors import ShoalError
from shoal.wire.client import Refused, Unreachable
from shoal.wire.messages import (
    AcctRow,
    ClusterRow,
    JobRow,
    NewToken,
    NodeAdded,
    NodeRow,
    Submission,
    Submitted,
    TokenRow,
)
from shoal.wire.node_messages import NewNode

ATTACKS = ("fuzz", "hold_back", "stream", "garble", "lie", "fill", "files", "read_only", "clock", "jobs")
"""What is done beside the strikes of a trial; each trial does two of these."""

TRIALS_PER_HOME = 15
_SECONDS = 5.0
_MOST = {"plane": {"mb": 400, "files": 150, "threads": 80}, "agent": {"mb": 150, "files": 100, "threads": 40}}
"""What a process may hold once an attack is over."""

_HOSTILE = {
    "leaves its session": "for i in 1 2 3; do setsid env -i sleep 1000 & done; sleep 1",
    "kills its keeper": "kill -9 $PPID; sleep 1000",
    "stops its keeper": "kill -STOP $PPID; sleep 1000",
    "ignores its warning": "trap '' TERM; sleep 1000",
    "writes much": "head -c 4000000 /dev/urandom | base64; sleep 1",
    "removes its folder": 'rm -rf "$SHOAL_DIR"; sleep 1',
    "lies about progress": 'for n in 1e999 -1 nan x; do echo "$n $n" > "$SHOAL_PROGRESS"; sleep 0.3; done',
    "forks": "for i in $(seq 200); do sleep 1000 & done; sleep 0.5",
}
"""Jobs that fight those who watch over them, as programs of a shell."""


@dataclass(slots=True)
class Attack(Trial):
    """A trial with the attacks ``kinds`` beside its strikes."""

    site: AttackSite
    tokens: dict[str, str] = field(default_factory=dict)
    kinds: tuple[str, ...] = ()
    wrong: list[str] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    hostile: list[str] = field(default_factory=list)
    """Identifiers of the jobs that fight."""

    def _strike(self) -> None:
        until = time.monotonic() + _SECONDS
        threads = [threading.Thread(target=self._attack, args=(kind, until)) for kind in self.kinds]
        for thread in threads:
            thread.start()
        Trial._strike(self)
        if "read_only" in self.kinds and (wrong := self.site.start_on_read_only_disk()):
            self.wrong.append(f"a start on a read-only disk: {wrong}")
        for thread in threads:
            thread.join()
        self._repair()

    def _attack(self, kind: str, until: float) -> None:
        chance = random.Random(f"{self.plan.seed} {kind}")
        attacker = Attacker(self.site._port, self.tokens, chance, until)
        self._tell(f"attack: {kind}")
        match kind:
            case "fill" | "files":
                self._strike_disk(kind, chance, until)
            case "clock":
                while attacker.on:
                    self.site.shift_clock(chance.choice([-1, 1]) * 10 ** chance.uniform(1, 8.5))
                    time.sleep(chance.uniform(0.1, 2.0))
            case "jobs":
                self._submit_hostile(chance, until)
            case "read_only":
                self.site.disk_struck = True
            case _:
                getattr(attacker, kind)()
        self.wrong += attacker.wrong
        self.statuses += attacker.statuses

    def _strike_disk(self, kind: str, chance: random.Random, until: float) -> None:
        self.site.disk_struck = True
        time.sleep(chance.uniform(0.0, 2.0))
        while time.monotonic() < until:
            if kind == "fill":
                self.site.disk.fill()
            else:
                self.site.disk.take_files()
            time.sleep(chance.uniform(0.1, 1.0))

    def _submit_hostile(self, chance: random.Random, until: float) -> None:
        while time.monotonic() < until and len(self.hostile) < 4:
            name = chance.choice([*_HOSTILE])
            one = Submission(
                command=["bash", "-c", _HOSTILE[name]], name="hostile", grace=0.2, retries=0, preemptible="yes"
            )
            with suppress(ShoalError):
                self.hostile += self.site.client.post("/v1/jobs", one, Submitted).jobs
                self._tell(f"hostile: {self.hostile[-1]} {name}")
            time.sleep(0.3)

    def _repair(self) -> None:
        """End the attack: all that it took is given back, and what it asked for is taken back."""
        self.site.shift_clock(0.0)
        self.site.repair()
        self._tell("the attack is over")
        self._wait(self._answers, "the control plane answers")
        ours = {wish.name for wish in self.plan.wishes}
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            with suppress(Unreachable, Refused):
                rows = [
                    row for row in self.site.client.get("/v1/jobs?limit=1000", list[JobRow]) if row.name not in ours
                ]
                for row in rows:
                    self.site.client.call("DELETE", f"/v1/jobs/{row.id}?force=true", None, type(None))
                for node in range(NODES):
                    self.site.client.call("POST", f"/v1/nodes/gpu-{node}/resume", None, type(None))
                return
            time.sleep(0.1)
        raise Violation("never came true: what the attack asked for can be taken back")

    def _answers(self) -> bool:
        self.site.repair()  # a control plane that began to start on the full disk may end only now
        return bool(self.site.client.get("/v1/cluster", ClusterRow))

    def _check_promises(self) -> None:
        Trial._check_promises(self)
        self._check_usage()
        self._wait(self._little_held, f"processes hold at most {_MOST}")
        if self.wrong:
            raise Violation(self.wrong[0])

    def _all_free(self) -> bool:
        rows = [row for row in self.site.client.get("/v1/nodes", list[NodeRow]) if row.name != "liar-0"]
        return all(row.up and not row.used and not row.jobs for row in rows) and not self.site.runs()

    def _check_job(self, wish: Wish, row: JobRow) -> None:
        if self.site.disk_struck and row.state == "failed":  # by its own write
            return
        Trial._check_job(self, wish, row)

    def _check_usage(self) -> None:
        """No job may be charged for more than there was: clocks and lying agents make no time."""
        most = (time.monotonic() - self.site.began) * (NODES + 1) * GPUS
        for row in self.site.client.get("/v1/acct", list[AcctRow]):
            if not 0.0 <= row.gpu_seconds <= most:
                raise Violation(
                    f"{row.id} is charged {row.gpu_seconds:,.0f} GPU-seconds of {most:,.0f} that there were"
                )

    def _little_held(self) -> bool:
        for name, pid in self.site.pids().items():
            most = _MOST[name.partition("-")[0]]
            if any(held(pid).get(what, 0) > limit for what, limit in most.items()):
                return False
        return True


def main(arguments: list[str]) -> int:
    """Attack until the time is over; 1 if a guarantee was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.attack", description=__doc__)
    parser.add_argument("--minutes", type=float, default=75.0, help="how long (default: 75)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seed", type=int, help="just this one")
    parser.add_argument("--kinds", help="comma-separated attacks, in place of the two that the seed draws")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    until = time.monotonic() + 60 * given.minutes
    seed = given.first if given.seed is None else given.seed
    broken, done, struck, statuses = 0, 0, Counter[str](), Counter[int]()
    while time.monotonic() < until and (given.seed is None or not done):
        folder = Path(tempfile.mkdtemp(prefix="shoal-attack-"))
        site = AttackSite(folder / "site", (NODES, GPUS), [*OPTIONS, "--policy", policy_of(seed)])
        ok = True
        try:
            ready(site)
            tokens = _tokens(site)
            last = seed + (1 if given.seed is not None else TRIALS_PER_HOME)
            while seed < last and ok and time.monotonic() < until:
                kinds = tuple(given.kinds.split(",")) if given.kinds else _kinds(seed)
                ok = _trial(site, tokens, seed, kinds, statuses)
                done, broken, seed = done + 1, broken + (not ok), seed + 1
                struck.update(kinds)
        finally:
            ended = site.close()
        if ok and any(ended):
            broken, ok = broken + 1, False
            print(f"before seed {seed}: processes ended with statuses {ended}", flush=True)
        if ok:
            shutil.rmtree(folder)
        else:
            print(f"the logs are in {folder}", flush=True)
    what = ", ".join(f"{kind} {count}" for kind, count in sorted(struck.items()))
    print(f"{done} trials, {broken} broke a guarantee; attacks: {what}; answers: {dict(sorted(statuses.items()))}")
    return 1 if broken else 0


def _kinds(seed: int) -> tuple[str, ...]:
    return tuple(random.Random(f"attack {seed}").sample(ATTACKS, 2))


def _trial(site: AttackSite, tokens: dict[str, str], seed: int, kinds: tuple[str, ...], statuses: Counter[int]) -> bool:
    begin, ok = time.monotonic(), True
    site.disk_struck = False
    attack = Attack(site, Plan.of(seed), tokens=tokens, kinds=kinds)
    try:
        attack.run()
    except Violation as error:
        ok = False
        print(error, flush=True)
    statuses += attack.statuses
    holds = {name: held(pid) for name, pid in site.pids().items()}.get("plane")
    strikes = " ".join(strike.victim for strike in attack.plan.strikes)
    print(f"seed {seed}: {'ok' if ok else 'BROKEN'}, {'+'.join(kinds)}, {strikes}, {dict(attack.statuses)}, "
          f"{site.refused} starts refused, plane {holds}, {time.monotonic() - begin:.1f} s", flush=True)  # fmt: skip
    return ok


def _tokens(site: AttackSite) -> dict[str, str]:
    """Return a secret for each role; the agent's is that of a node of its own, which gets no job."""
    node = site.client.post("/v1/nodes", NewNode("liar-0", "gpu", 2), NodeAdded)
    site.client.call("POST", "/v1/nodes/liar-0/drain", {"reason": "it lies"}, type(None))
    user = site.client.post("/v1/tokens", NewToken("mallory", "user", "mallory"), TokenRow)
    secret = Path(node.token_file or "").read_text().strip()
    return {"admin": site._token("admin.token"), "user": user.secret or "", "agent": secret}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
