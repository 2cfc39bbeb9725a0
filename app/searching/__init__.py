"""What the page Bisect is made of: searches as they are kept, drawn, started and stopped."""
