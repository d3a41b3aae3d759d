"""Text tasks: masked language models, classes of texts and tokens, filling in, preferences, denoising, dialogue."""
