"""The server: scheduler and its thread, the HTTP application, and what it is built from."""
