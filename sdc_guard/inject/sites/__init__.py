"""Where faults are injected: a file for each kind of site."""
