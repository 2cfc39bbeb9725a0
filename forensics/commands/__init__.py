"""The commands of sdc-bisect; what is heavy is imported inside of them."""
