"""Synthetic tasks whose answers are known, and what models with the parts under test make of them."""
