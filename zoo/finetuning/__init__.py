"""Fine-tuning: training that starts from trained weights."""
