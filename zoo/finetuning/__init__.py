"""Training that starts from trained weights."""
