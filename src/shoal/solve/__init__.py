"""Mathematics that knows nothing of jobs: arrays in, answers out, each with what proves it where a proof is cheap."""
