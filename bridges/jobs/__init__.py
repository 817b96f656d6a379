"""The bridges' jobs: ``mirror``, ``compare``, ``export``, ``serve``, ``kafka_tier``, ``report``, ``policy``."""
