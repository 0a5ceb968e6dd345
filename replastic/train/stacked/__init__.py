"""Many small networks trained as one, each with its own seed and settings."""
