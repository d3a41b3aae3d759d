"""Parts from recent papers, for zoo."""
