"""What a model computes and what it costs, by part and by operation: `zoo explain`."""
