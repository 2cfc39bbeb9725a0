"""Which checkpoints of a guard's archive are kept, and deleting the others safely."""
