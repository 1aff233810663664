"""A driver library in C with the calls that suspension uses: it records them and returns the codes it is given."""

import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int code_of(const char *name, int count) {
    char key[64];
    const char *codes = getenv("FAKE_CODES"), *found;
    snprintf(key, sizeof key, "%s#%d=", name, count);
    if (codes && (found = strstr(codes, key))) return atoi(found + strlen(key));
    snprintf(key, sizeof key, "%s=", name);
    return codes && (found = strstr(codes, key)) ? atoi(found + strlen(key)) : 0;
}
static int call(const char *name, int pid, const unsigned *arguments, int *count) {
    FILE *log = fopen(getenv("FAKE_LOG"), "a");
    int zero = 1;
    for (int i = 1; i < 16; i++) zero &= arguments[i] == 0;
    fprintf(log, "%s %d %u%s\n", name, pid, arguments[0], zero ? "" : " dirty");
    fclose(log);
    return code_of(name, ++*count);
}
#define CALL(name) int cuCheckpointProcess##name(int pid, void *arguments) \
    { static int count; return call(#name, pid, arguments, &count); }
CALL(Lock) CALL(Checkpoint) CALL(Restore) CALL(Unlock)
#ifndef OLD
CALL(GetState)
#endif
int cuInit(unsigned flags) { return code_of("Init", 1); }
int cuDriverGetVersion(int *version) {
    *version = getenv("FAKE_VERSION") ? atoi(getenv("FAKE_VERSION")) : 13000;
    return 0;
}
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) { *handle = 0; return index > 7 ? 2 : 0; }
int nvmlDeviceGetMemoryInfo(void *handle, unsigned long long *info) {
    unsigned long long total = 1000, used = 0;
    FILE *file = fopen(getenv("FAKE_MEMORY"), "r");
    if (file && fscanf(file, "%llu", &used) != 1) used = 0;
    if (file) fclose(file);
    info[0] = total; info[1] = total - used; info[2] = used;
    return 0;
}
"""


class FakeCuda:
    """One copy of the library; ``codes`` such as ``Lock=3,Checkpoint#2=304`` (the second call), ``used`` in bytes."""

    def __init__(self, library: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = str(shutil.copy(library, folder / "libfake.so"))  # counts calls from 1
        self._log, self._memory, self._monkeypatch = folder / "calls", folder / "memory", monkeypatch
        monkeypatch.setenv("FAKE_LOG", str(self._log))
        monkeypatch.setenv("FAKE_MEMORY", str(self._memory))

    def returns(self, codes: str) -> None:
        self._monkeypatch.setenv("FAKE_CODES", codes)

    def uses(self, used: int) -> None:
        self._memory.write_text(str(used))

    @property
    def calls(self) -> list[str]:
        """The calls so far: name, process and time-out."""
        return self._log.read_text().splitlines() if self._log.exists() else []


def build(folder: Path, *options: str) -> Path:
    """Compile the library."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    source, library = folder / "fake.c", folder / "libfake.so"
    source.write_text(SOURCE)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), *options, str(source)], check=True)
    return library
