"""Bringing a run back: which of its checkpoints to take, and copying it, each byte proven."""
