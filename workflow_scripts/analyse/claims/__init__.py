"""Published claims and pasted tables, held against measurements and the hardware."""
