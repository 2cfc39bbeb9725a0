"""Thousands of paired trials: which faults are found, by what, and how often nothing is accused."""
