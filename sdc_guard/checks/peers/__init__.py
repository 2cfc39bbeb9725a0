"""Ranks' gradients beside each other, while they train."""
