"""The command line: one file per verb group, and the composition roots."""
