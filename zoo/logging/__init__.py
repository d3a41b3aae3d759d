"""What a run writes about itself: its record, TensorBoard events, figures of attention."""
