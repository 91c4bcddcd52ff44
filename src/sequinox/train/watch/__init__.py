"""What a run costs, and how it is doing."""
