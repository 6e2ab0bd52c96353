"""How rows become batches, one way in each file."""
