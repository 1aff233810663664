"""Run the ``shoal`` command as ``python -m shoal``."""

from shoal.cli import main

main()
