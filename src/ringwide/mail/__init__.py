"""MESSAGES BETWEEN TWO RANKS: who sends what to whom, and what becomes of it."""
