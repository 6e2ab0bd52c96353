"""Sharing a model: pushes to the Hugging Face Hub, and the model card."""
