"""One file a contender, ours among them, each run by the interpreter of its own environment.

All take the same words: `schema`, `enqueue single|concurrent|many COUNT`, `latency COUNT`,
`worker`. A file's docstring names the settings it uses and why; the results page quotes it. What
they share is in `body.py` and `body.cjs`, which need nothing but the standard library.
"""
