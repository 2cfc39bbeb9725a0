"""The whole story in one command."""
