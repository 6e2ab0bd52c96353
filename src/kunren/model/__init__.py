"""What a model is and takes: signatures, label names, wrappers looked through, features switched on."""
