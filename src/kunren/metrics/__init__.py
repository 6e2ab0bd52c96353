"""What an evaluation computes besides the loss; one way of computing it in each file."""
