"""Data modules of the text tasks."""
