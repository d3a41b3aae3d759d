"""Trained models in use: found, built again from their configuration, asked, scored and exported."""
