"""Asking engines: vLLM's own routes, any OpenAI server, several servers at once."""
