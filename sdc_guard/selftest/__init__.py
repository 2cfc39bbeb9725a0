"""Proving on a machine that what should be seen there can be seen."""
