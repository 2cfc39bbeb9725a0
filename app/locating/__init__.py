"""What the page Locate is made of: its SQL, scores, charts and parts."""
