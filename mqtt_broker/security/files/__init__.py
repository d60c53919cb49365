"""Small files that are read and written whole. Imports nothing of ours."""
