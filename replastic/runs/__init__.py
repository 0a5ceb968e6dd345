"""Experiment files: what may stand in one, which runs it means, and how they are run, here or on a cluster."""
