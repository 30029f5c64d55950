"""What the hardware is."""
