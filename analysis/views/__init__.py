"""Answers for a reader: one function per kind of verdict, for the terminal, the report and notebooks."""
