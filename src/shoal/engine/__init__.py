"""The loop and its seams: state as a fold over the journal, the eight-step cycle, replay."""
