"""What every storage promises."""
