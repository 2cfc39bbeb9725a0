"""Where judgings run: in this process one after the other, in threads, on a Ray cluster."""
