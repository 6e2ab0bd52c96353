"""From a data set to the micro-batches of one optimizer step: loaders, order, columns, reading by position, windows."""
