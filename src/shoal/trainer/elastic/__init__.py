"""Data-parallel training whose workers join and leave between steps, without a restart."""
