"""TODO: one line."""
