"""Plugins: discover installed packages with parts, describe and diagnose the parts, and import them safely."""
