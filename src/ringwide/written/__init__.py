"""WHAT WAS WRITTEN: YAML and `--set` as plain data that knows where it stands, and mistakes in it as one sentence."""
