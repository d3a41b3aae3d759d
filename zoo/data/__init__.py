"""Data modules, tokenizers, batching and caches; independent of models."""
