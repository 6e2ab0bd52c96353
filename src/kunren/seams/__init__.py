"""The Trainer's overridable methods by concern: each collects what a function below needs, keeps the result."""
