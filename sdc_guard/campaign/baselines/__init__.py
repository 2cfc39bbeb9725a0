"""Detectors of others, from their published rules, to compare the sensor with."""
