"""Swap any part of a Transformer by one line of config, train it, and learn whether the swap helped."""

__version__ = "0.1.0"
