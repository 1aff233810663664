"""Values and protocols of the ring, and the life cycle of a job; no policy, no clock and no I/O."""
