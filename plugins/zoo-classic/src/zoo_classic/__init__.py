"""Language models and word vectors before the Transformer; zoo finds them by the entry points in pyproject.toml."""
