"""Training logs that no guard wrote: reading them, and judging what they hold."""
