"""Text tasks: a network, its loss and its metrics."""
