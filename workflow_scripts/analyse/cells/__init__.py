"""One row per cell, start and repeat: rates, request times, timelines and answers."""
