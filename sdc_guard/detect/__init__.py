"""Detectors: numpy arrays in, alerts out; no torch and no I/O."""
