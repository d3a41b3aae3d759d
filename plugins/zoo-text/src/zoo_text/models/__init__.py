"""Networks of the text tasks, in plain torch."""
