"""What networks learn from, one kind of data a folder."""
