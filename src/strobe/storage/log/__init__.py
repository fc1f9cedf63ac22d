"""The log as a whole: appending to it, following it as it grows, its terms, and where it ends."""
