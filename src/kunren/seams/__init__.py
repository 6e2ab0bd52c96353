"""The Trainer's overridable methods by concern: each collects what a function below needs, calls it, keeps the result."""
