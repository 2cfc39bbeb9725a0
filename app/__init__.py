"""The dashboard: what was recorded of one run, as pages that answer one question each."""
