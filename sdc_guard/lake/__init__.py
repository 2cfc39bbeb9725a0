"""Many machines: a run's trace committed to DuckLake, and read from there."""
