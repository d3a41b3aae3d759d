"""Comparisons: their design, runs, statistics, verdicts and report."""
