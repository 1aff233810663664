"""The values of the ring, its protocols and its one state machine; no policy, no clock and no I/O."""
