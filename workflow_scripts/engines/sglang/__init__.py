"""SGLang: its server."""
