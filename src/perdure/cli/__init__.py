"""The command line: parses, calls the engine, presents. The engine is imported when needed."""
