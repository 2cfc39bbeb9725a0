"""A search that goes on from command to command: what was judged, by whom, and what is next."""
