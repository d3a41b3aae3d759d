"""Packages that bring parts: what is installed, what a class says of itself, what does not fit."""
