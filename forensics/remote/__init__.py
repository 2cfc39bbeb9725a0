"""Archives behind URLs: what fsspec reads, as the paths that the readers know."""
