"""What must not change when only the batching, the evaluation or an interruption changes."""
