"""Draw figures and the page from tables; nothing is computed here."""
