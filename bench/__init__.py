"""The project's figures, measured on a real local site: `python -m bench` (see __main__)."""
