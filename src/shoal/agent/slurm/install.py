"""Install the programs that batch scripts call in a folder that the jobs' users can read, once for each version."""

import hashlib
import os
import py_compile
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

_SOURCES = Path(__file__).parent / "programs"
_PACKAGE = "lib/shoal/agent/slurm/programs"
_IN_JOB = ("srun", "scontrol")
_ON_CLUSTER = ("sbatch", "squeue", "scancel", "sacct")


def install(parent: Path) -> Path:
    """Return the folder of the programs below ``parent``: ``bin`` for the job's PATH, and ``batch``, the job's rank.

    ``bash_env`` is a file that puts ``bin`` on the PATH of a bash that has set it anew.
    """
    sources = sorted(_SOURCES.glob("*.py"))
    version = hashlib.sha256(sys.executable.encode())
    for source in sources:
        version.update(source.read_bytes())
    folder = parent / f"slurm-{version.hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    made = Path(mkdtemp(dir=parent))
    try:
        _fill(made, folder, sources)
        with suppress(OSError):  # another run has installed it meanwhile
            made.rename(folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def _fill(made: Path, folder: Path, sources: list[Path]) -> None:
    package = made / _PACKAGE
    package.mkdir(parents=True)
    (made / "bin").mkdir()
    for source in sources:
        shutil.copyfile(source, package / source.name)
        if source.name not in ("main.py", "__init__.py"):
            py_compile.compile(str(package / source.name), dfile=source.name, doraise=True)
    main = folder / _PACKAGE / "main.py"
    _program(made / "batch", main, "batch")
    for name in _IN_JOB:
        _program(made / "bin" / name, main, name)
    for name in _ON_CLUSTER:
        _program(made / "bin" / name, main, f"cluster_call '{sys.executable}' {name}")
    # A login shell sets PATH anew, and then reads the file that BASH_ENV names.
    own = folder / "bin"
    (made / "bash_env").write_text(f"case \":$PATH:\" in *':{own}:'*) ;; *) PATH='{own}':$PATH ;; esac\n")
    for path, folders, files in os.walk(made):
        for name in (".", *folders, *files):
            os.chmod(os.path.join(path, name), 0o755)


def _program(path: Path, main: Path, words: str) -> None:
    """Write a program that runs with the agent's Python, or with the PATH's where the job's user cannot run that."""
    python = os.path.realpath(sys.executable)
    path.write_text(
        f"#!/bin/sh\n[ -x '{python}' ] && exec '{python}' -I -S '{main}' {words} \"$@\"\n"
        f"exec python3 -I -S '{main}' {words} \"$@\"\n"
    )
