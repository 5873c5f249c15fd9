"""Configuration: reading, overriding and validating YAML settings, and the settings of a ring."""
