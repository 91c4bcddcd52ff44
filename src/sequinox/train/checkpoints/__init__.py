"""Checkpoints, and models from them."""
