"""Afterwards: which checkpoint is the last clean one, and what happened in the step after it."""
