"""The commands ``shoal bench``, ``repro`` and ``solve``."""
