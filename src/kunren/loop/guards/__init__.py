"""Guards: what keeps a run going when memory runs out or a number is not finite. Each is readable alone."""
