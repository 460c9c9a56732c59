"""The app: the object that users hold."""
