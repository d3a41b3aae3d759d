"""Trained models of the text tasks."""
