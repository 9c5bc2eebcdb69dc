"""Reads run folders and studies, and tells their results."""
