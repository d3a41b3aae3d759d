"""Inference: find and load trained models safely; generate, translate, classify, tag and score; export."""
