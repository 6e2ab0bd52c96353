"""Checkpoints: written whole or not at all, read back without running code, kept and chosen by step."""
