"""Seals beside checkpoints that other programs wrote: what their files were, and what they hold."""
