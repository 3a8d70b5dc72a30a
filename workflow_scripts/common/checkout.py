"""Where the checkout lies that this code is from."""

from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[2]
