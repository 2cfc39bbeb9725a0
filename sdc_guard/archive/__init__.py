"""Checkpoints with a manifest: what was saved is what was trained, or it is not called clean."""
