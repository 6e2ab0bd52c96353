"""How batches are read: in this process, by workers, from a stream. One way in each file."""
