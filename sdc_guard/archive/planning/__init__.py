"""When to save, which checkpoints to keep, and what both cost: arithmetic, before a run begins.

Numbers in, numbers out: only `sources` reads files, only `drawing` writes one.
"""
