"""The testing kit: a user's app on virtual time. `kit.Kit` is the whole of it."""
