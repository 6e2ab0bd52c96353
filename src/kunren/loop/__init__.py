"""The loop and what it calls: one step, evaluation, the meter of losses and speed. No Trainer type is known here."""
