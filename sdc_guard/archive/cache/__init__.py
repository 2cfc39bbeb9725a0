"""Files of checkpoints on a disk near the devices: proven at each use, never above a size."""
