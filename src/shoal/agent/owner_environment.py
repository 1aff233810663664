"""The environment of the person who submitted a job, as far as it exists on this node.

``shoal submit`` sends three variables: ``SHOAL_SUBMIT_PATH``, which is its own ``PATH``, and ``VIRTUAL_ENV`` or
``CONDA_PREFIX`` of an active environment. The job's ``PATH`` is made of them here, since only the node knows which
folders it has; ``python`` then means the owner's interpreter.
"""

import os
from collections.abc import Mapping

_PREFIXES = ("VIRTUAL_ENV", "CONDA_PREFIX")


def owner_environment(env: Mapping[str, str], environ: Mapping[str, str]) -> tuple[dict[str, str], str]:
    """Return the agent's variables with those of a submission, and a note if its Python environment is not here.

    The path begins with the environment's programs, then come the folders of the owner's path that exist here, then the
    agent's. A submission that sets ``PATH`` itself keeps it. If it was made by ``shoal submit``, the agent's own Python
    environment is left out.
    """
    ours, theirs = dict(environ), dict(env)
    submitted = theirs.pop("SHOAL_SUBMIT_PATH", "")
    for name in _PREFIXES if submitted else ():
        ours.pop(name, None)
    prefixes = {name: theirs[name] for name in _PREFIXES if theirs.get(name)}
    missing = {name: prefix for name, prefix in prefixes.items() if not os.path.isdir(os.path.join(prefix, "bin"))}
    for name in missing:
        del theirs[name]
    if "PATH" not in theirs and (submitted or prefixes):
        own = [os.path.join(prefix, "bin") for name, prefix in prefixes.items() if name not in missing]
        owners = [folder for folder in submitted.split(os.pathsep) if os.path.isabs(folder) and os.path.isdir(folder)]
        agents = environ.get("PATH", os.defpath).split(os.pathsep)
        theirs["PATH"] = os.pathsep.join(dict.fromkeys([*own, *owners, *agents]))
    found = {**ours, **theirs}
    note = f"{' and '.join(missing.values())}, the Python environment of the job's owner, is not on this node"
    return found, f"shoal: {note}; PATH is {found.get('PATH', '')}\n" if missing else ""
