"""Tasks: what a model is trained for, as LightningModules."""
