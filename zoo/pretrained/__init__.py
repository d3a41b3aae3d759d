"""Published checkpoints: how those of each family are read into models of zoo, and written back."""
