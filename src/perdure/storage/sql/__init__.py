"""The storage contract on SQL: statements out, rows in."""
