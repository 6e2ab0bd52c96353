"""The `kunren` command."""
