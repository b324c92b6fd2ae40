"""Small helpers for other packages; each module needs the package that it is named for."""
