"""Checkpoints that several ranks write together, in the format of torch.distributed.checkpoint."""
