"""Catalogue of optimizers that torch.optim does not have: one file each."""
