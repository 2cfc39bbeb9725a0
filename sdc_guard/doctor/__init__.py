"""What on a machine stands in the way of watching a training, before it starts."""
