"""The papers' tables and figures, with the paper's values, ours and the differences."""
