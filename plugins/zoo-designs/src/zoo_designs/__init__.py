"""Designs of comparisons for zoo: several sizes, several recipes, hybrids of two recipes, longer texts."""
