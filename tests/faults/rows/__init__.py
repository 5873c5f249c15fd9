"""What happens, and what every rank must see: one file a row of the table."""
