"""What needs transformers: loaded on use, by what is asked for by name."""
