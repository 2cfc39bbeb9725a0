"""Following runs from their folders."""
