"""Spanwise: compare attention variants by accuracy, time and memory on the same work."""
