"""The databases that tests run on."""
