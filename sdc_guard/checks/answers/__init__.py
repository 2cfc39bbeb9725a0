"""A small computation whose answer is known, asked of the device at a cadence."""
