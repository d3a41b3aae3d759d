"""Published models: how the checkpoints of each family are read into zoo's models, and written back."""
