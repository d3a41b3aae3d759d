"""zoo beyond one machine; zoo finds its commands, executors and strategies by the entry points in pyproject.toml."""
