"""The process: memory allocation and garbage collection."""
