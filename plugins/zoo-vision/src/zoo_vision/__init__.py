"""Vision models that are no plain stack; zoo finds them by the entry points in pyproject.toml."""
