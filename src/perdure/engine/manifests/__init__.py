"""Schedules and the targets they need, written down in files.

`lines` reads YAML into plain values that know their lines, `fields` says what a manifest may hold,
`reading` and `wakeplane` make entries of it, `manifest` gathers files, `saying` says a stored
schedule as a manifest would, `applying` makes what is stored say what a manifest says.
"""
