"""Copies of old checkpoints that hold their weights alone."""
