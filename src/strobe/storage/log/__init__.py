"""The log as a whole: append to it, follow it, its terms, and its end."""
