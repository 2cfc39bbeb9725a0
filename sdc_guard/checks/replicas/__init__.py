"""Replicas compared with each other by their digests."""
