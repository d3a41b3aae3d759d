"""Pretrained weights of other libraries: import the checkpoints of each family into models of zoo, and export them."""
