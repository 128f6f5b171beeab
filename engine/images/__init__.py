"""Images and what they are made of: builds and fetches, and runs nothing of a tool."""
