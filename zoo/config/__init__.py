"""Configurations: YAML with lines, layers with origins, class names, types and sizes from data."""
