"""Lessons that run: pages in two languages whose numbers are computed while they are read."""
