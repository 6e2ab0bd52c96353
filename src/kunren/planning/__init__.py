"""What a run would do and take, found out without training: `Trainer.plan()` and `kunren plan`."""
