"""What a loss is divided by: counting labels, weighting micro-batches, label smoothing."""
