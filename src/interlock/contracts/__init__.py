"""The words on the wire: names, payload models, errors. Standard library and pydantic only."""
