"""A run under Lightning: loops, checkpoints, random state, several processes, numeric safety, memory."""
