"""Where jobs sit: from counts to seats, moving nobody whose grant did not change."""
