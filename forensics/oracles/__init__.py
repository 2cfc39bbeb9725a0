"""Judges of a single checkpoint."""
