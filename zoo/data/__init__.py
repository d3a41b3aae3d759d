"""Data modules: they know tokenizers, sizes and splits, and nothing of any model."""
