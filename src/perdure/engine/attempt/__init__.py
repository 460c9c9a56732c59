"""One attempt as its handler sees it: its context, its transaction, and how it ends."""
