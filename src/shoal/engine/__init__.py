"""The control loop, the state it folds events into, and replay."""
