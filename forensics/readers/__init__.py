"""One adapter per checkpoint format. Nothing here runs anything that a checkpoint holds."""
