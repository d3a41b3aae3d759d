"""Parts for long sequences; zoo finds them by the entry points in pyproject.toml."""
