"""Losses and metrics as sums and counts."""
