"""Send changes of runs to webhooks: signed posts, at least once, in order."""
