"""Attaching a guard to the training loops of other libraries, each of them optional."""
