"""Webhooks out: whoever wants to hear of runs is told by signed posts, at least once, in order."""
