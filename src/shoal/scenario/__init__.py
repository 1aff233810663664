"""A scenario: the settings of a run, the objects built from them, and simulation runs."""
