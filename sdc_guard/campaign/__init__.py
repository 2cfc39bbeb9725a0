"""Campaigns: many injected faults, each beside a twin without one, and what finds them."""
