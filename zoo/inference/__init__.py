"""Trained models: found, loaded safely, and used to generate, translate, classify, label and score; exports."""
