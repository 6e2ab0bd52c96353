"""kunren beside transformers 5.24 in one process: what both compute must be equal bit for bit."""
