"""Where the checkout of this code is."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
