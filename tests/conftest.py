"""One profile for all property tests: no deadlines (the machines differ), the same examples everywhere in CI.

Ctrl-C is heard even where the shell that started the tests in the background had it ignored: some tests press it.
"""

import os
import signal

from hypothesis import settings

settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "local")

signal.signal(signal.SIGINT, signal.default_int_handler)
