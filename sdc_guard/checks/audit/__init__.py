"""Steps run again before they are applied, here and elsewhere."""
