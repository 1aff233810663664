"""The settings of an agent, as its command line gives them."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from shoal.agent.job_logs import DEFAULT_LOG_BYTES
from shoal.core.errors import InputError
from shoal.wire.client import Client


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Settings of an agent: the control plane, the node, its GPUs and its folders.

    ``token`` is called at the start and again when the control plane refuses the token.
    ``kind`` and ``gpus`` come from NVIDIA's driver if they are not given. Jobs may work in folders below ``roots``, and
    in their own; without roots in any folder that their user may enter. The agent ends with the process ``parent``. If
    several agents share a machine, ``first_device`` is the first GPU of this one. A rank's log is kept within
    ``log_bytes``. ``tenant_users`` is described in ``tenant_users.choose_users``. An agent of an
    ``allocation`` for a single run, which this names, ends with that run. ``longest_grace`` are the
    seconds that an engine leaves between its warning and its kill, of which runs then get three quarters.
    """

    server: str
    token: Callable[[], str]
    node: str
    address: str
    home: Path
    cafile: str | None = None
    kind: str | None = None
    gpus: int | None = None
    roots: tuple[Path, ...] = ()
    parent: int | None = None
    first_device: int = 0
    log_bytes: int = DEFAULT_LOG_BYTES
    tenant_users: str = "off"
    allocation: str = ""
    longest_grace: float | None = None

    @property
    def grace_when_warned(self) -> float | None:
        """Return the most grace, in seconds, that runs get when the engine ends the agent; None without a limit."""
        return None if self.longest_grace is None else 0.75 * self.longest_grace

    def client(self) -> Client:
        """Return a client of the control plane; ``InputError`` if the certificate file cannot be used."""
        try:
            return Client(self.server, self.token, cafile=self.cafile)
        except OSError as error:
            raise InputError("cafile", self.cafile, f"cannot be used: {error.strerror or error}") from None
