"""Ways in which what is spread over the processes of a run gets into a checkpoint and back, one in each file."""
