"""Faults on purpose, with their ground truth, to prove that they are found."""
