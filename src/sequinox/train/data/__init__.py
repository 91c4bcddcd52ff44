"""Ragged data: padded, in buckets, packed, in windows."""
