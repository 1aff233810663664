"""The options of ``#SBATCH`` lines that the node's agent applies; they travel in the job's environment.

``SHOAL_SBATCH`` marks a job as a batch script: its command runs once, on the job's first node, with Slurm's variables
and programs. ``SHOAL_SCRIPT`` holds the script as it was when it was submitted.
"""

import base64
import zlib
from collections.abc import Mapping

import msgspec

from shoal.core.decoding import convert
from shoal.core.errors import InputError

OPTIONS_VARIABLE = "SHOAL_SBATCH"
SCRIPT_VARIABLE = "SHOAL_SCRIPT"

_MOST_TEXT = 4096
"""Most characters of a variable of a job."""


class BatchOptions(msgspec.Struct, frozen=True, omit_defaults=True):
    """The requests of a batch script that shape its run; 0 or empty where the script does not say.

    ``script`` is the index of the script's path in the job's command, 0 for none. ``output`` and ``error`` are file
    names with Slurm's ``%`` patterns. With ``signal_batch`` the warning signal goes to the script, else to its steps.
    """

    nodes: int = 0
    tasks: int = 0
    tasks_per_node: int = 0
    gpus_per_task: int = 0
    script: int = 0
    output: str = ""
    error: str = ""
    append: bool = False
    signal_batch: bool = False


def batch_options(env: Mapping[str, str]) -> BatchOptions | None:
    """Return the options of a job with this environment; None if it is no batch script."""
    text = env.get(OPTIONS_VARIABLE)
    if text is None:
        return None
    try:
        return convert(msgspec.json.decode(text or "{}"), BatchOptions)
    except (msgspec.DecodeError, InputError) as error:
        raise InputError(f"env.{OPTIONS_VARIABLE}", text[:100], f"must be options as JSON: {error}") from None


def options_text(options: BatchOptions) -> str:
    """Return the value of ``SHOAL_SBATCH``."""
    return msgspec.json.encode(options).decode()


def pack_script(text: str) -> str | None:
    """Return the value of ``SHOAL_SCRIPT``; None if the script is too long for a variable."""
    packed = base64.b85encode(zlib.compress(text.encode(), 9)).decode()
    return packed if len(packed) <= _MOST_TEXT else None
