"""The jobs of the bridges: ``mirror``, ``compare``, ``export``, ``serve``, ``report``, ``policy``."""
