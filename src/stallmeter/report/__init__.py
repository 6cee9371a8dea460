"""Text, Markdown, JSON, HTML and a picture from a recording: pure functions."""
