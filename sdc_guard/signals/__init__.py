"""What is measured in the training process. Nothing here waits for a device."""
