"""What a directory of torch.distributed.checkpoint holds, read without running anything in it."""
