"""What is compared besides a step's own evidence: replicas, steps run again, known answers."""
