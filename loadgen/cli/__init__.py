"""From command-line words to acts: one file per verb group, and the composition roots."""
